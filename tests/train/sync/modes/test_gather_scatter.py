"""The root receives one bucket while it sends the mean of the one before."""

import pytest
import torch

from train.sync.base import MIB, SyncOptions
from train.sync.modes import gather_scatter
from train.sync.modes.gather_scatter import GatherScatter, Root
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


def test_the_next_bucket_is_on_its_way_before_the_mean_of_one_is_sent(calls):
    root = Root(None, None, RANKS)
    buckets = [torch.full((size,), 100.0 * number) for number, size in enumerate((4, 7, 2))]
    started = [root.start(bucket) for bucket in buckets]
    for one in started:
        one.wait()
    # the mean of x, x + 3 and x + 6 is x + 3
    assert calls == [
        "gather 0", "gather 100", "scatter 3", "gather 200", "scatter 103", "scatter 203"
    ]  # fmt: skip
    assert [bucket.tolist() for bucket in buckets] == [[3.0] * 4, [103.0] * 7, [203.0] * 2]


def mode(**settings):
    made = GatherScatter(Ranks(rank=0, world_size=RANKS), SyncOptions(**settings))
    made._root = Root(None, None, RANKS)
    return made


def test_what_is_larger_than_a_bucket_comes_in_pieces(calls):
    tensor = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0], [100.0, 100.0, 100.0, 100.0, 100.0]])
    made = mode(bucket_mb=5 * 4 / MIB)
    made.start(tensor).wait()
    assert calls == ["gather 0", "gather 100", "scatter 3", "scatter 103"]
    assert tensor.tolist() == [[3.0] * 5, [103.0] * 5]
    assert made.ranks.ledger.gradients.total() == 2 * tensor.nbytes


@pytest.mark.parametrize(
    "settings", [{"bucket_mb": 0.0}, {"bucket_mb": 5 * 4 / MIB, "overlap": False}, {}]
)
def test_else_it_goes_as_it_is(calls, settings):
    mode(**settings).start(torch.zeros(2, 5)).wait()
    assert [call.split()[0] for call in calls] == ["gather", "scatter"]


def test_buckets_of_later_steps_come_into_the_same_memory(calls):
    root = Root(None, None, RANKS)
    for _ in range(5):
        for one in [root.start(torch.zeros(6)) for _ in range(4)]:
            one.wait()
    assert sum(len(memory) for memory in root._memory.values()) == 2 * RANKS * 6


def test_a_peer_that_is_lost_is_told_to_who_waits(calls, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("connection closed by peer")

    root = Root(None, None, RANKS)
    first = root.start(torch.zeros(2))
    monkeypatch.setattr(gather_scatter.dist, "scatter", broken)
    with pytest.raises(RuntimeError, match="closed by peer"):
        first.wait()
    monkeypatch.setattr(gather_scatter.dist, "gather", broken)
    with pytest.raises(RuntimeError, match="closed by peer"):
        root.start(torch.zeros(2)).wait()
