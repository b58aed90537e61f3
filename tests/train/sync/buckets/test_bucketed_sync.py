"""Buckets leave while the backward pass goes on, in one order on all ranks."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from train.sync.base import SyncOptions
from train.sync.buckets import auto_size, sparse_rows
from train.sync.buckets.bucketed_sync import BucketSync, Done, Pending
from train.sync.ranks import Ranks

LAYERS = 4


class Recording(BucketSync):
    """Averages with another rank that has the same gradients."""

    overlaps = True

    def __init__(self, options: SyncOptions) -> None:
        super().__init__(Ranks(rank=0, world_size=2), options)
        self.started: list[Tensor] = []
        self.waited: list[int] = []

    def start(self, tensor: Tensor) -> Pending:
        self.started.append(tensor.clone())
        return Waited(self.waited, len(self.started))


class Waited(Done):
    def __init__(self, waited: list[int], number: int) -> None:
        self._waited, self._number = waited, number

    def wait(self) -> None:
        self._waited.append(self._number)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """What this rank tells the other one, the other one says as well."""
    monkeypatch.setattr(Ranks, "broadcast", lambda ranks, tensors: None)
    monkeypatch.setattr(Ranks, "all_reduce", lambda ranks, tensor, op: tensor)


def options(**settings) -> SyncOptions:
    return SyncOptions(**{"bucket_mb": 0, **settings})


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(LAYERS)))


def backward(sync: Recording, model: nn.Module) -> int:
    """Buckets that have left when the backward pass is over."""
    sync.started.clear()
    sync.backward(model(torch.ones(2, 3)).square().sum())
    return len(sync.started)


def test_after_the_first_step_all_buckets_leave_during_the_backward_pass():
    sync, model = Recording(options()), network()
    model = sync.wrap(model)
    assert backward(sync, model) == 0  # the order is being learned
    sync.sync(model)
    want = [param.grad.clone() for param in model.parameters()]
    model.zero_grad()

    assert backward(sync, model) == LAYERS
    assert all(param.grad is None for param in model.parameters())  # held once, in the buckets
    sync.sync(model)
    assert len(sync.started) == LAYERS and sync.comm_s == sync.overlapped_s > 0
    got = [param.grad for param in model.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    # last layer first, as its gradient is there first
    assert all(torch.equal(a, b.flatten()) for a, b in zip(sync.started, want[::-1], strict=True))


def test_without_overlap_each_is_waited_for_before_the_next_one_leaves():
    sync, model = Recording(options(overlap=False)), network()
    model = sync.wrap(model)
    for _ in range(2):
        sync.waited.clear()
        assert backward(sync, model) == 0
        sync.sync(model)
        assert sync.waited[:LAYERS] == list(range(1, LAYERS + 1)) and sync.comm_s == 0
        model.zero_grad()


def test_only_the_last_micro_batch_sends_and_it_sends_the_sum():
    sync, model = Recording(options()), network()
    model = sync.wrap(model)
    for _ in range(2):
        model.zero_grad()
        with sync.no_sync(model):
            assert backward(sync, model) == 0
        once = [param.grad.clone() for param in model.parameters()]
        backward(sync, model)
        sync.sync(model)
    for param, one in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(param.grad, 2 * one)


def test_a_bucket_waits_for_those_before_it():
    """The last layer has no gradient, so its bucket, which is the first, is not full."""
    sync, model = Recording(options()), network()
    model = sync.wrap(model)
    backward(sync, model)
    sync.sync(model)
    model.zero_grad()
    sync.started.clear()
    sync.backward(model[:-1](torch.ones(2, 3)).square().sum())
    assert not sync.started
    sync.sync(model)
    assert len(sync.started) == LAYERS and not sync.started[0].any()
    assert model[-1].weight.grad is None and model[0].weight.grad is not None


def test_auto_tries_sizes_and_says_once_which_one_stays():
    sync, model = Recording(options(bucket_mb="auto")), network()
    model = sync.wrap(model)
    messages = []
    for _ in range(auto_size.STEPS_EACH * len(auto_size.TRIED_MB) + 3):
        backward(sync, model)
        sync.sync(model)
        messages += sync.take_messages()
        model.zero_grad()
    (line,) = messages
    assert line.startswith("bucket-mb auto: ")


class Shared(nn.Module):
    """One layer used several times; each time is a graph of its own, computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.times = 1

    def forward(self, values: Tensor) -> Tensor:
        values = self.first(values)
        for _ in range(self.times):
            values = torch.tanh(checkpoint(self.shared, values, use_reentrant=True))
        return values


@pytest.mark.parametrize("bucket_mb", [0, 25])
@pytest.mark.parametrize("times", [(3, 3, 3), (1, 3, 3, 2, 4, 1)])
def test_a_layer_in_several_backward_passes_of_a_step_sends_their_sum(times, bucket_mb):
    torch.manual_seed(0)
    sync, alone = Recording(options(bucket_mb=bucket_mb)), Shared()
    model = sync.wrap(copy.deepcopy(alone))
    for model.times in times:
        alone.times = model.times
        alone(torch.ones(2, 3)).square().sum().backward()
        backward(sync, model)
        sync.sync(model)
        for param, one in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(param.grad, one.grad)
        model.zero_grad()
        alone.zero_grad()


def test_what_came_late_once_is_waited_for_from_then_on():
    sync, model = Recording(options()), Shared()
    model = sync.wrap(model)
    left = []
    for model.times in (1, 2, 2):
        left.append(backward(sync, model))
        sync.sync(model)
        left.append(len(sync.started))
        model.zero_grad()
    assert left == [0, 2, 2, 3, 2, 2]


def test_a_model_of_embeddings_alone(monkeypatch):
    monkeypatch.setattr(sparse_rows, "LEAST_BYTES", 0)
    sync, model = Recording(options()), nn.Embedding(5, 2)
    model = sync.wrap(model)
    for _ in range(2):
        model.zero_grad()
        sync.backward(model(torch.tensor([1, 1, 3])).sum())
        sync.sync(model)
        assert model.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]]


def test_what_ranks_say_of_themselves_goes_along_with_their_flags(monkeypatch):
    """Whatever bytes there are: the largest of each is that of the rank that they belong to."""
    lines = []

    def both(ranks, tensor, op):
        lines.append(tensor)
        other = tensor.clone()
        other[:16], other[16:32] = (
            0,
            torch.tensor([-0.5, 7.0], dtype=torch.float64).view(torch.uint8),
        )
        return tensor.maximum(other)

    monkeypatch.setattr(Ranks, "all_reduce", both)
    sync, model = Recording(options()), network()
    model = sync.wrap(model)
    backward(sync, model)
    rows = sync.exchange(model, torch.tensor([float("nan"), -3.0], dtype=torch.float64))
    assert str(rows.tolist()) == "[[nan, -3.0], [-0.5, 7.0]]" and len(lines) == 1
