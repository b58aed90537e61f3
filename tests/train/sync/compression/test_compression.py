"""What every way to compress keeps of the mean, and that nothing is lost for good."""

import pytest
import torch
from torch import nn

from configs import plugins
from muster.errors import UsageError
from tests.train.sync.compression import compression_worker
from tests.train.workers import results_of
from train.sync.base import SyncOptions
from train.sync.compression.int8 import Int8
from train.sync.ranks import Ranks

WAYS = plugins.names("train.sync.compression")
REMEMBERING = ["int8", "powersgd"]
RANKS = 3
VALUES = 40 * 30 + 7 + 16 * 72 + 4 + 1200


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The workers hold that all ranks have the same bits, and what is the exact mean."""
    return results_of(compression_worker.work, RANKS, tmp_path_factory.mktemp("found"))[0]


@pytest.mark.parametrize("of", ["", "unused", "other buckets"])
@pytest.mark.parametrize("way", REMEMBERING)
def test_over_steps_all_comes_out_but_what_is_still_held_back(found, way, of):
    """Exactly so: the sum of what came out and of the memory is the sum of the true means.

    The memory does not grow: of several steps it has a smaller part than of one.
    """
    one = found[way][of]
    torch.testing.assert_close(one["got"] + one["held back"], one["want"], rtol=0, atol=1e-6)
    assert one["held back"].norm() > 1e-3
    once, want = found[way][""]["first"]
    of_one = (once - want).norm() / want.norm()
    assert of or one["held back"].norm() / one["want"].norm() < 0.8 * of_one


@pytest.mark.parametrize("way", WAYS)
def test_a_step_without_numbers_is_seen_by_all_and_forgotten(found, way):
    assert found[way]["nan"] and found[way]["overflow"]


@pytest.mark.parametrize(
    ("way", "moved"),
    [
        ("fp16", {"all_reduce": 2 * VALUES}),
        ("bf16", {"all_reduce": 2 * VALUES}),
        # two chunks of 1024 values per rank, each with a scale of 4 bytes
        ("int8", {"all_to_all": RANKS * 2 * 1028, "all_gather": 2 * 1028}),
        # vectors and the small matrix as they are; rank 2 of (40, 30) and of (16, 72)
        ("powersgd", {"all_reduce": 4 * (7 + 4 + 1200 + 2 * (40 + 30 + 16 + 72))}),
    ],
)
def test_the_account_has_the_bytes_that_were_handed_over(found, way, moved):
    assert found[way]["moved"] == moved


def test_every_way_has_its_line_in_these_tests():
    assert sorted(["fp16", "bf16", *REMEMBERING]) == WAYS


def test_errors_of_a_removed_compressor_are_dropped(alone):
    made = Int8(nn.Linear(2, 2), Ranks(), SyncOptions(compress="int8"))
    of_int8 = {"int8/error/weight": torch.ones(2, 2)}
    made.restore(of_int8 | {"topk/error/weight": torch.ones(2, 2), "topk/0/error": torch.ones(6)})
    assert made.state().keys() == of_int8.keys()


@pytest.mark.parametrize("key", ["int8/0/error", "int8/3/error of the mean", "powersgd/step"])
def test_what_was_kept_by_bucket_is_refused_by_name(key, alone):
    made = Int8(nn.Linear(2, 2), Ranks(), SyncOptions(compress="int8"))
    with pytest.raises(UsageError, match="older versions did; give --reset-optimizer"):
        made.restore({key: torch.zeros(3)})
