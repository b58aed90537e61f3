"""Synced BatchNorm equals that of one process: in every mode, on any ranks, with any split."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from tests.train.sync import batchnorm_worker as worker
from tests.train.workers import results_of
from train.batches.plan import BatchPlan, MicroBatch
from train.sync import batchnorm
from train.sync.ddp.data_parallel import SingleProcess

SIZES = {"dataset_size": 8, "batch_size": 8, "seed": 0}
LIMITS = {"fp64": 1e-9, "fp32": 1e-6}  # in one step, parameters move by 0.1 of the gradient


@pytest.mark.slow
def test_a_network_with_batchnorm_equals_one_process(tmp_path):
    outcomes = results_of(worker.work, 3, tmp_path)[0]
    wrong = []
    for case in worker.cases():
        want, got = outcomes[worker.reference(case).name], outcomes[case.name]
        gap = max((want[name] - got[name]).abs().max().item() for name in want)
        if case.task == "local":  # each rank has its own statistics, so training differs
            assert gap > 1e-2
        elif not gap <= LIMITS[case.precision]:
            wrong.append(f"{case.name}: {gap:.1e}")
    assert not wrong, "\n".join(wrong)


PLAIN = {
    "1d, (n, channels)": (nn.BatchNorm1d(3), (6, 3)),
    "1d": (nn.BatchNorm1d(3), (6, 3, 5)),
    "2d": (nn.BatchNorm2d(3, eps=1e-2, momentum=0.3), (4, 3, 5, 2)),
    "3d": (nn.BatchNorm3d(3), (2, 3, 3, 2, 2)),
    "no weights": (nn.BatchNorm2d(3, affine=False), (4, 3, 2, 2)),
    "plain mean": (nn.BatchNorm2d(3, momentum=None), (4, 3, 2, 2)),
    "no running statistics": (nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 2, 2)),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_synced_batchnorm_equals_torchs(kind, alone):
    plain, shape = PLAIN[kind]
    plain = copy.deepcopy(plain).double()
    for parameter in plain.parameters():
        nn.init.uniform_(parameter)
    synced = batchnorm.convert(copy.deepcopy(plain), timeout_s=10)
    assert isinstance(synced, batchnorm.SyncedBatchNorm)
    for step in range(5):
        if step == 4:
            plain.eval(), synced.eval()
        values = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        twin = values.detach().clone().requires_grad_()
        wanted, normed = plain(values), synced(twin)
        weights = torch.randn(shape, dtype=torch.float64)
        (wanted * weights).sum().backward()
        (normed * weights).sum().backward()
        every = [
            [output, given.grad, *(param.grad for param in layer.parameters()), layer.state_dict()]
            for output, given, layer in ((normed, twin, synced), (wanted, values, plain))
        ]
        torch.testing.assert_close(*every, rtol=0, atol=1e-13)


def test_reduced_precision_keeps_full_precision_statistics(alone):
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(3)
    synced = batchnorm.convert(copy.deepcopy(plain), timeout_s=10)
    values = (torch.randn(8, 3, 4, 4) + 5).bfloat16().requires_grad_()
    twin = values.detach().clone().requires_grad_()
    wanted, normed = plain(values), synced(twin)
    (wanted.float() ** 3).sum().backward()
    (normed.float() ** 3).sum().backward()
    assert normed.dtype == twin.grad.dtype == torch.bfloat16
    torch.testing.assert_close(normed, wanted)
    torch.testing.assert_close(twin.grad, values.grad, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(synced.running_var, plain.running_var)


def test_float32_statistics_far_from_zero_keep_their_digits():
    """E[x^2] - E[x]^2 would be off by hundreds of per cent. One rank has a dummy, one nothing."""
    values = torch.randn(60, 4, 3) * 0.1 + 1000
    parts = [(values[:7], True), (torch.zeros(1, 4, 3), False), (values[7:], True)]
    parts.append((values[:0], True))
    rows = [batchnorm.local_statistics(part, counts) for part, counts in parts]
    seen = batchnorm.merge(torch.stack(rows))
    exact = values.double()
    assert seen.size == 180
    torch.testing.assert_close(seen.mean, exact.mean((0, 2)), rtol=1e-7, atol=0)
    torch.testing.assert_close(seen.var, exact.var((0, 2), correction=0), rtol=1e-3, atol=0)


@pytest.mark.parametrize("dummies", [0, 2])
@pytest.mark.parametrize("shape", [(3,), (3, 5), (3, 4, 4)])
def test_empty_batch_does_not_change_statistics(shape, dummies, alone):
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    layer = batchnorm.convert(kind(3), timeout_s=10)
    before = copy.deepcopy(layer.state_dict())
    batchnorm.count_samples([layer], not dummies)
    values = torch.full((dummies, *shape), 1e30, requires_grad=True)
    normed = layer(values)
    (normed.sum() * 0.0).backward()
    assert normed.shape == values.grad.shape == (dummies, *shape)
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)
    assert not layer.weight.grad.any() and not layer.bias.grad.any()


def test_empty_micro_batch_does_not_disable_later_ones(alone):
    model = SingleProcess(batchnorm.convert(nn.Sequential(nn.BatchNorm1d(3)), timeout_s=10))
    (layer,) = batchnorm.synced_layers(model)
    for weight, error in ((0.0, None), (1.0, None), (0.0, ZeroDivisionError)):
        with pytest.raises(error) if error else nullcontext(), MicroBatch((0,), weight).on(model):
            assert layer.counts == (weight > 0)
            _ = 1 / 0 if error else None
        assert layer.counts


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"accumulation": 2}, "accumulation="),
        ({"lengths": range(8), "pass_tokens": 1.0}, "lengths="),
        ({"accumulation": 2, "in_step": True}, ""),
        ({"accumulation": 2, "weights": (1.0,)}, ""),
        ({"units": [0.0, *[1.0] * 7]}, "some units= are 0"),
        ({"units": [0.0, *[1.0] * 7], "weights": (1.0,)}, ""),
        ({"units": [0.5] * 8}, ""),
        ({}, ""),
    ],
)
def test_micro_batches_that_each_rank_cuts_by_itself_are_refused(given, named, alone):
    """Losses would depend on the number of ranks, or ranks would wait for passes others skip."""
    plan = BatchPlan(**{"weights": (1.0, 1.0), "accumulation": 1, **given}, **SIZES)
    model = SingleProcess(batchnorm.convert(nn.Sequential(nn.BatchNorm1d(3)), timeout_s=10))
    for rank in range(len(plan.weights)):
        micro = next(plan.epoch(0, rank)).micro_batches[0]
        with pytest.raises(UsageError, match=named) if named else nullcontext(), micro.on(model):
            pass
        with micro.on(SingleProcess(nn.BatchNorm1d(3))):
            pass


def test_copied_or_pickled_batchnorm_is_synced(alone):
    model = batchnorm.convert(nn.Sequential(nn.BatchNorm1d(3)), timeout_s=10)
    values = torch.randn(4, 3)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(other[0], batchnorm.SyncedBatchNorm)
        torch.testing.assert_close(other(values), copy.deepcopy(model)(values))


def test_subclass_of_batchnorm_is_not_converted(alone):
    class Activated(nn.BatchNorm1d):
        def forward(self, input):
            return super().forward(input).relu()

    shared = nn.BatchNorm1d(3)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": Activated(3)})
    synced = batchnorm.convert(model, timeout_s=10)
    assert type(synced["c"]) is Activated
    assert synced["a"] is synced["b"][0]
    assert len(batchnorm.synced_layers(synced)) == 1
    plain = nn.Linear(2, 2)
    assert batchnorm.convert(plain, timeout_s=10) is plain
