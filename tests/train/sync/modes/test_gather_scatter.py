"""The root receives one piece while it sends the previous piece's mean, and holds no more."""

import threading

import pytest
import torch
from torch import nn

from train.sync.base import MIB, SyncOptions
from train.sync.modes import gather_scatter
from train.sync.modes.gather_scatter import PIECES_AT_ONCE, GatherScatterHook
from train.sync.ranks import Ranks

RANKS, FAR_S = 3, 60


class Network:
    """The root's collectives, in order; rank r has the root's values plus 3 r."""

    def __init__(self) -> None:
        self.gathered: list[int] = []
        self.scattered: list[int] = []
        self.changed = threading.Condition()
        self.may_scatter = threading.Event()
        self.may_scatter.set()

    def gather(self, tensor, parts, **_):
        for rank, part in enumerate(parts):
            part.copy_(tensor + 3 * rank)
        with self.changed:
            self.gathered.append(int(tensor.flatten()[0]))
            self.changed.notify_all()
        return self

    def scatter(self, tensor, every, **_):
        assert self.may_scatter.wait(FAR_S)
        assert len(every) == RANKS and all(part is tensor for part in every)
        self.scattered.append(int(tensor.flatten()[0]))
        return self

    def wait(self):
        """Do nothing: each request is complete as soon as it is made."""

    def wait_for(self, gathers):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.gathered) == gathers, FAR_S)


@pytest.fixture
def network(monkeypatch):
    made = Network()
    monkeypatch.setattr(gather_scatter.dist, "gather", made.gather)
    monkeypatch.setattr(gather_scatter.dist, "scatter", made.scatter)
    yield made
    made.may_scatter.set()


@pytest.fixture
def root(network, alone):
    """Return the root's hook, with buckets of five values."""
    options = SyncOptions(bucket_mb=5 * 4 / MIB)
    return GatherScatterHook(nn.Linear(1, 1), Ranks(rank=0, world_size=RANKS), options)


def test_buckets_are_averaged_in_order_and_large_ones_in_pieces(network, root):
    pieces = torch.tensor([100.0] * 5 + [200.0] * 5)
    buckets = [torch.zeros(4), pieces, torch.full((2,), 300.0)]
    before = [bucket.clone() for bucket in buckets]
    started = [root.start(bucket) for bucket in buckets]
    for future, bucket in zip(started, buckets, strict=True):
        assert future.wait() is bucket
    # the mean of x, x + 3 and x + 6 is x + 3
    assert network.gathered == [0, 100, 200, 300] and network.scattered == [3, 103, 203, 303]
    torch.testing.assert_close(buckets, [bucket + 3 for bucket in before])
    assert root.ranks.ledger.gradients.total() == 2 * sum(bucket.nbytes for bucket in buckets)


def test_root_gathers_only_one_piece_ahead_while_scattering(network, root):
    network.may_scatter.clear()
    started = [root.start(torch.full((5,), 100.0 * number)) for number in range(4)]
    network.wait_for(PIECES_AT_ONCE + 1)  # the mean of the first has made room
    while root._room._value:  # the fourth has none yet
        network.wait_for(PIECES_AT_ONCE + 1)
    assert network.gathered == [0, 100, 200] and network.scattered == []
    network.may_scatter.set()
    for future in started:
        future.wait()
    assert network.gathered == [0, 100, 200, 300] and network.scattered == [3, 103, 203, 303]


@pytest.mark.parametrize("lost", ["scatter", "gather"])
def test_lost_peer_raises_in_the_wait_for_its_bucket(lost, root, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(gather_scatter.dist, lost, broken)
    for started in [root.start(torch.zeros(12)) for _ in range(3)]:
        with pytest.raises(RuntimeError, match="closed by peer"):
            started.wait()
