"""One rank of real gloo that is told it has NCCL and a device with events: steps of all_reduce.

Started by test_nccl_engine.py under torchrun. What is real: DDP, its hook, and what it sends. What
stands in: the name of the backend, and the clock of the device.
"""

import time

import torch
import torch.distributed as dist
from torch import nn

from train.sync import base, torch_ddp
from train.sync.base import SyncOptions
from train.sync.modes.ddp import Ddp
from train.sync.ranks import current_ranks
from train.sync.synced_model import sync

WIDTH = 1850  # a layer of it fills one of DDP's buckets of 25 MiB


class Event:
    """A clock that counts as a device's does: asked only after the step's own wait."""

    is_over = False

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        assert Event.is_over, "asking now would wait for the device"
        return 1e3 * (other.at - self.at)


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 7)).double()


def in_a_users_loop(step: torch.Tensor, rank: int) -> None:
    """`muster.sync`: the same engine, and gradients that are the mean after `backward` alone."""
    wrapped, alone = sync(own := model(seed=rank)), model(seed=0)
    with wrapped.no_sync():
        wrapped(step[rank][:2]).square().sum().backward()
    wrapped(step[rank][2:]).square().sum().backward()
    alone(step.flatten(0, 1)).square().sum().div(len(step)).backward()
    for one, other in zip(own.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-9)


def main() -> None:
    dist.init_process_group("gloo")
    base.uses_nccl = lambda: True
    torch_ddp._has_events, torch_ddp._event = lambda device: True, Event
    ranks = current_ranks()
    mode = base.build("all_reduce", ranks, SyncOptions())
    assert type(mode) is Ddp and "torch's own DDP engine" in mode.take_messages()[0]
    wrapped, alone = mode.wrap(own := model(seed=ranks.rank)), model(seed=0)
    samples = torch.randn(3, ranks.world_size, 5, WIDTH, dtype=torch.float64)
    dist.broadcast(samples, 0)
    for step in samples:
        Event.is_over = False
        first, rest = step[ranks.rank].split([2, 3])
        with mode.no_sync(wrapped):
            mode.backward(wrapped(first).square().sum())
        mode.backward(wrapped(rest).square().sum())
        rows = mode.exchange(wrapped, torch.tensor([float(ranks.rank)]))
        assert rows.flatten().tolist() == list(range(ranks.world_size))
        alone(step.flatten(0, 1)).square().sum().div(ranks.world_size).backward()
        for one, other in zip(own.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-12, atol=1e-9)
        mode.updated(wrapped)
        Event.is_over = True
        mode.finished()
        assert 0 < mode.overlapped_s < mode.comm_s < 5
        sent = ranks.ledger.take_step()
        assert len(sent) > 1 and {one.operation for one in sent} == {"all_reduce"}
        assert sum(one.nbytes for one in sent) == sum(param.nbytes for param in own.parameters())
        wrapped.zero_grad()
        alone.zero_grad()
    in_a_users_loop(samples[0], ranks.rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
