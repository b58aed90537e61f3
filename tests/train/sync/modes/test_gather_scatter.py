"""The root receives one piece while it sends the mean of the one before."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from train.sync.base import MIB, SyncOptions
from train.sync.modes import gather_scatter
from train.sync.modes.gather_scatter import GatherScatterHook
from train.sync.ranks import Ranks

RANKS = 3


class Work:
    def wait(self) -> None:
        pass


@pytest.fixture
def calls(monkeypatch):
    """What the root asks for, in order; every rank has what the root has, plus its number."""
    made: list[str] = []

    def gather(tensor, parts, **_):
        made.append(f"gather {int(tensor.flatten()[0])}")
        for rank, part in enumerate(parts):
            part.copy_(tensor + 3 * rank)
        return Work()

    def scatter(tensor, every, **_):
        made.append(f"scatter {int(tensor.flatten()[0])}")
        assert len(every) == RANKS and all(one is tensor for one in every)
        return Work()

    monkeypatch.setattr(gather_scatter.dist, "gather", gather)
    monkeypatch.setattr(gather_scatter.dist, "scatter", scatter)
    return made


@pytest.fixture
def root(calls):
    """The root's hook, of buckets that are five values large."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options = SyncOptions(bucket_mb=5 * 4 / MIB)
    yield GatherScatterHook(nn.Linear(1, 1), Ranks(rank=0, world_size=RANKS), options)
    dist.destroy_process_group()


def test_the_next_bucket_is_on_its_way_before_the_mean_of_one_is_sent(calls, root):
    buckets = [torch.full((size,), 100.0 * number) for number, size in enumerate((4, 5, 2))]
    started = [root.start(bucket) for bucket in buckets]
    root.finish()
    for one, bucket in zip(started, buckets, strict=True):
        assert one.wait() is bucket
    # the mean of x, x + 3 and x + 6 is x + 3
    assert calls == [
        "gather 0", "gather 100", "scatter 3", "gather 200", "scatter 103", "scatter 203"
    ]  # fmt: skip
    assert [bucket.tolist() for bucket in buckets] == [[3.0] * 4, [103.0] * 5, [203.0] * 2]


def test_what_is_larger_than_a_bucket_comes_in_pieces(calls, root):
    tensor = torch.tensor([0.0] * 5 + [100.0] * 5)
    started = root.start(tensor)
    root.finish()
    started.wait()
    assert calls == ["gather 0", "gather 100", "scatter 3", "scatter 103"]
    assert tensor.tolist() == [3.0] * 5 + [103.0] * 5
    assert root.ranks.ledger.gradients.total() == 2 * tensor.nbytes


def test_buckets_of_later_steps_come_into_the_same_memory(root):
    for _ in range(5):
        started = [root.start(torch.zeros(5)) for _ in range(4)]
        root.finish()
        for one in started:
            one.wait()
    assert sum(len(memory) for memory in root._memory.values()) == 2 * RANKS * 5


def test_a_peer_that_is_lost_is_told_to_who_waits(root, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("connection closed by peer")

    for name in ("scatter", "gather"):
        monkeypatch.setattr(gather_scatter.dist, name, broken)
        started = root.start(torch.zeros(2))
        root.finish()
        with pytest.raises(RuntimeError, match="closed by peer"):
            started.wait()
