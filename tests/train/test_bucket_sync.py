"""Buckets leave while the backward pass goes on, in one order on all ranks."""

import pytest
import torch
from torch import Tensor, nn

from configs.schema import TrainConfig
from train import bucket_size, bucket_sync, grad_sync
from train.bucket_sync import BucketSync, Done, Pending
from train.world import World

LAYERS = 4


class Recording(BucketSync):
    """Averages with another rank that has the same gradients."""

    overlaps = True

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(World(rank=0, world_size=2), config)
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
    monkeypatch.setattr(grad_sync, "broadcast", lambda world, tensors: None)
    monkeypatch.setattr(bucket_sync, "broadcast", lambda world, tensors: None)
    for module in (bucket_sync, bucket_size):
        monkeypatch.setattr(module, "all_reduce", lambda world, tensor, op: tensor)


def config(**settings) -> TrainConfig:
    return TrainConfig(task="synthetic", sync="all_reduce", **{"bucket_mb": 0, **settings})


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(LAYERS)))


def backward(sync: Recording, model: nn.Module) -> int:
    """Buckets that have left when the backward pass is over."""
    sync.started.clear()
    sync.backward(model(torch.ones(2, 3)).square().sum())
    return len(sync.started)


def test_after_the_first_step_all_buckets_leave_during_the_backward_pass():
    sync, model = Recording(config()), network()
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
    sync, model = Recording(config(overlap=False)), network()
    model = sync.wrap(model)
    for _ in range(2):
        sync.waited.clear()
        assert backward(sync, model) == 0
        sync.sync(model)
        assert sync.waited[:LAYERS] == list(range(1, LAYERS + 1)) and sync.comm_s == 0
        model.zero_grad()


def test_only_the_last_micro_batch_sends_and_it_sends_the_sum():
    sync, model = Recording(config()), network()
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
    sync, model = Recording(config()), network()
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
    sync, model = Recording(config(bucket_mb="auto")), network()
    model = sync.wrap(model)
    news = []
    for _ in range(bucket_size.STEPS_EACH * len(bucket_size.TRIED_MB) + 3):
        backward(sync, model)
        sync.sync(model)
        news += sync.take_news()
        model.zero_grad()
    (line,) = news
    assert line.startswith("bucket-mb auto: ")
