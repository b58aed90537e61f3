"""Each compressor's result is near the mean, and what it leaves out is sent later."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from configs import plugins
from muster.errors import UsageError
from tests.train.sync.compression import compression_worker
from tests.train.workers import results_of
from train.sync.base import SyncOptions
from train.sync.compression.int8 import Int8
from train.sync.ranks import Ranks

COMPRESSORS = plugins.names("train.sync.compression")
REMEMBERING = ["int8", "powersgd"]
RANKS = 3
VALUES = 40 * 30 + 7 + 16 * 72 + 4 + 1200


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The workers check that all ranks have the same bits, and compute the exact mean."""
    return results_of(compression_worker.work, RANKS, tmp_path_factory.mktemp("results"))[0]


@pytest.mark.parametrize("case", ["", "unused", "other buckets"])
@pytest.mark.parametrize("compressor", REMEMBERING)
def test_sum_of_compressed_steps_and_remembered_errors_is_the_exact_sum(results, compressor, case):
    """The sum of the results and of what is remembered is the sum of the true means.

    What is remembered does not grow: after several steps it is a smaller part than after one.
    """
    sums = results[compressor][case]
    total = sums["averaged"] + sums["remembered"]
    torch.testing.assert_close(total, sums["exact"], rtol=0, atol=1e-6)
    assert sums["remembered"].norm() > 1e-3
    averaged, exact = results[compressor][""]["first step"]
    first_error = (averaged - exact).norm() / exact.norm()
    assert case or sums["remembered"].norm() / sums["exact"].norm() < 0.8 * first_error


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_nan_or_infinite_gradient_reaches_all_ranks_and_is_not_remembered(results, compressor):
    assert results[compressor]["nan"] and results[compressor]["overflow"]


@pytest.mark.parametrize(
    ("compressor", "moved"),
    [
        ("fp16", {"all_reduce": 2 * VALUES}),
        ("bf16", {"all_reduce": 2 * VALUES}),
        # two chunks of 1024 values per rank, each with a scale of 4 bytes
        ("int8", {"all_to_all": RANKS * 2 * 1028, "all_gather": 2 * 1028}),
        # vectors and the small matrix as they are; rank 2 of (40, 30) and of (16, 72)
        ("powersgd", {"all_reduce": 4 * (7 + 4 + 1200 + 2 * (40 + 30 + 16 + 72))}),
    ],
)
def test_ledger_counts_the_bytes_of_each_compressor(results, compressor, moved):
    assert results[compressor]["moved"] == moved


class Waits(TorchDispatchMode):
    """Counts how often the host asks for the number in one tensor: there it waits for a GPU."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation is torch.ops.aten._local_scalar_dense.default
        return operation(*args, **kwargs or {})


@pytest.mark.parametrize("compressor", REMEMBERING)
def test_host_waits_for_no_parameter_by_itself(compressor, alone):
    model = nn.Sequential(*(nn.Linear(30, 40) for _ in range(5)))
    options = SyncOptions(compress=compressor, compress_rank=2)
    made = plugins.load("train.sync.compression", compressor)(model, Ranks(), options)
    for _ in range(2):
        named = {name: torch.randn(param.shape) for name, param in model.named_parameters()}
        with Waits() as waits:
            made.average_named(named)
        assert waits.count == 0


def test_every_compressor_is_tested_here():
    assert sorted(["fp16", "bf16", *REMEMBERING]) == COMPRESSORS


def test_errors_of_a_removed_compressor_are_dropped(alone):
    compressor = Int8(nn.Linear(2, 2), Ranks(), SyncOptions(compress="int8"))
    of_int8 = {"int8/error/weight": torch.ones(2, 2)}
    compressor.restore(
        of_int8 | {"topk/error/weight": torch.ones(2, 2), "topk/0/error": torch.ones(6)}
    )
    assert compressor.state().keys() == of_int8.keys()


@pytest.mark.parametrize("key", ["int8/0/error", "int8/3/error of the mean", "powersgd/step"])
def test_errors_stored_by_bucket_are_refused(key, alone):
    compressor = Int8(nn.Linear(2, 2), Ranks(), SyncOptions(compress="int8"))
    with pytest.raises(UsageError, match="older versions did; give --reset-optimizer"):
        compressor.restore({key: torch.zeros(3)})
