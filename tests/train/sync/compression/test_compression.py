"""Each compressor's result is near the mean, and values that powersgd omits are sent later."""

import pytest
import torch
from torch import nn

from configs import plugins
from muster.errors import UsageError
from tests.train.sync.compression import compression_worker
from tests.train.sync.compression.compression_worker import PLAIN_STEPS, RANK
from tests.train.workers import results_of
from train.sync.base import SyncOptions
from train.sync.compression.powersgd import PowerSgd
from train.sync.ddp.data_parallel import HookChoice, sync
from train.sync.modes.all_reduce import AllReduceHook
from train.sync.modes.gather_scatter import GatherScatterHook
from train.sync.ranks import Ranks

COMPRESSORS = plugins.names("train.sync.compression")
RANKS = 3
VALUES = 40 * 30 + 7 + 16 * 72 + 4 + 1200
GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The workers check that all ranks have the same bits, and compute the exact mean."""
    return results_of(compression_worker.work, RANKS, tmp_path_factory.mktemp("results"))[0]


@pytest.mark.parametrize(("compressor", "within"), [("fp16", 1e-3), ("bf16", 1e-2)])
def test_sixteen_bits_are_near_the_mean(results, compressor, within):
    assert all(0 < gap < within for gap in results[compressor]["gaps"])


def test_powersgd_sends_all_in_the_first_two_steps(results):
    *plain, compressed = results["powersgd"]["gaps"]
    assert max(plain) < 1e-12 and 1e-3 < compressed < 1


def test_sum_of_compressed_steps_and_of_what_is_left_is_the_exact_sum(results):
    """The sum of the results plus what is left over equals the sum of the true means."""
    sums = results["sums"]
    torch.testing.assert_close(sums["averaged"] + sums["left"], sums["exact"], rtol=0, atol=1e-6)
    assert sums["left"].norm() > 1e-3


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_nan_reaches_all_ranks(results, compressor):
    assert results[compressor]["nan"]


@pytest.mark.parametrize(
    ("compressor", "moved"),
    [
        ("fp16", {"all_reduce": 2 * VALUES}),
        ("bf16", {"all_reduce": 2 * VALUES}),
        # vectors and the small matrix uncompressed; (40, 30) and (16, 72) with rank 2
        ("powersgd", {"all_reduce": 4 * (7 + 4 + 1200 + 2 * (40 + 30 + 16 + 72))}),
    ],
)
def test_ledger_counts_the_bytes_of_each_compressor(results, compressor, moved):
    assert results[compressor]["moved"] == moved


def test_every_compressor_is_tested_here():
    assert sorted(["fp16", "bf16", "powersgd"]) == COMPRESSORS


def powersgd(rank: int = RANK) -> PowerSgd:
    options = SyncOptions(compress="powersgd", compress_rank=rank)
    return PowerSgd(nn.Linear(8, 8), Ranks(), options)


def test_powersgd_begins_anew_after_what_another_run_has_left(alone):
    """It restarts if a state lacks this rank's own part, or is for another rank of the matrices."""
    saved = powersgd()
    saved._state.iter = PLAIN_STEPS
    state = saved.state()
    again, fewer, other = powersgd(), powersgd(), powersgd(rank=RANK + 1)
    again.restore(state)
    fewer.restore({name: part for name, part in state.items() if not name.endswith("/rank")})
    other.restore(state)
    assert [hook._state.iter for hook in (again, fewer, other)] == [PLAIN_STEPS, 0, 0]
    assert again._state.rng.randint(10**9) == saved._state.rng.randint(10**9)


@pytest.mark.parametrize(
    "weight",
    [torch.tensor(1.0), torch.zeros(0), torch.zeros(3, 2).t(), torch.zeros(2, dtype=torch.cfloat)],
)
def test_what_powersgd_cannot_view_as_a_matrix_is_refused(weight, alone):
    model = nn.ParameterDict({"odd": weight})
    with pytest.raises(UsageError, match=r"--compress powersgd: odd must be .*; use --compress bf"):
        PowerSgd(model, Ranks(), SyncOptions(compress="powersgd"))
    with pytest.raises(UsageError, match="weight must be"):
        PowerSgd(nn.Embedding(4, 4, sparse=True), Ranks(), SyncOptions(compress="powersgd"))


def test_powersgd_is_refused_with_static_graph(alone):
    choice = HookChoice.for_mode(None, SyncOptions(compress="powersgd"))
    model = sync(nn.Linear(8, 8), static_graph=True)
    hook = choice.hook_class(model, Ranks(), choice.options)
    hook.joins_of = lambda: model
    with pytest.raises(UsageError, match=r"--compress powersgd .* static_graph=True"):
        hook._group  # noqa: B018


@pytest.mark.parametrize(
    ("hook_class", "compress", "text"),
    [
        (GatherScatterHook, "none", "gather_scatter .* NCCL.*; use --sync ddp"),
        (None, "bf16", "bf16 .* NCCL.*; use --compress none"),
        (None, "powersgd", "powersgd .* NCCL.*; use --compress none"),
    ],
)
def test_gpus_over_gloo_are_refused(hook_class, compress, text, alone):
    with pytest.raises(UsageError, match=text):
        HookChoice.for_mode(hook_class, SyncOptions(compress=compress)).for_device(GPU)


def test_all_reduce_of_gpus_over_gloo_is_plain_ddp(alone):
    assert HookChoice.for_mode(AllReduceHook, SyncOptions()).for_device(GPU).hook_class is None
