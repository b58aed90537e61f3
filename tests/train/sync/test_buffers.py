"""Buffers that a step has changed become their mean over ranks; others keep their bits."""

import math
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from train.sync.buffers import Buffers
from train.sync.ranks import Ranks

CPU = torch.device("cpu")
SHARES = (0.75, 0.25, 0.0)  # of ranks with 3 and 1 of 4 samples, and of one without any


class Threads:
    """Three ranks as threads; what one of them gives to a collective is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *models: nn.Module) -> None:
        self.models, self.sizes = models, list[int]()
        self._gate, self._parts = threading.Barrier(3), dict[int, Tensor]()
        owner = self
        monkeypatch.setattr(
            Ranks, "all_reduce", lambda ranks, tensor, _: owner._all_reduce(ranks, tensor)
        )
        self.each = [
            Buffers(Ranks(rank=rank, world_size=3), model) for rank, model in enumerate(models)
        ]

    def _all_reduce(self, ranks: Ranks, tensor: Tensor) -> Tensor:
        self._parts[ranks.rank] = tensor.clone()
        self._gate.wait()
        if ranks.rank == 0:
            self.sizes.append(tensor.numel())
        tensor.copy_(sum(self._parts[rank] for rank in range(3)))
        self._gate.wait()
        return tensor

    def step(self, change: Callable[[int, nn.Module], None]) -> None:
        """What a rank does in a step, beside `change(rank, model)`."""
        for rank, model in enumerate(self.models):
            change(rank, model)
        marks = torch.stack([one.marks(CPU) for one in self.each])
        threads = [
            threading.Thread(target=one.average, args=(share, marks))
            for one, share in zip(self.each, SHARES, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("turns", torch.tensor([1 + 2j]))
        self.register_buffer("cache", torch.zeros(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def test_changed_buffers_become_their_weighted_mean_in_one_collective(monkeypatch):
    ranks = Threads(monkeypatch, Holder(), Holder(), Holder())

    def change(rank: int, model: Holder) -> None:
        model.norm.running_mean.fill_((2.0, 6.0, math.nan)[rank])
        model.norm.running_var.data.fill_(1.1)  # the same on all ranks
        if rank == 0:
            model.turns = model.turns * 3  # another tensor in its place

    ranks.step(change)
    for model in ranks.models:
        assert model.norm.running_mean.tolist() == [3.0, 3.0]
        assert model.norm.running_var.tolist() == torch.full((2,), 1.1).tolist()
        assert model.turns.item() == 0.75 * (3 + 6j) + 0.25 * (1 + 2j)
        assert model.mask.tolist() == [0.0, -math.inf] and model.count.item() == 0
    assert ranks.sizes == [2 + 2 + 2]
    ranks.step(lambda *_: None)
    assert len(ranks.sizes) == 1  # nothing has changed


def test_a_mask_with_infinities_may_change(monkeypatch):
    ranks = Threads(monkeypatch, Holder(), Holder(), Holder())
    ranks.step(lambda _, model: model.mask.copy_(torch.tensor([-math.inf, 5.0])))
    assert [model.mask.tolist() for model in ranks.models] == [[-math.inf, 5.0]] * 3


def test_a_cache_that_grows_on_one_rank_is_left_alone(monkeypatch):
    ranks = Threads(monkeypatch, Holder(), Holder(), Holder())

    def change(rank: int, model: Holder) -> None:
        model.norm.running_mean += rank
        if rank == 1:
            model.cache = torch.ones(4)

    for _ in range(2):
        ranks.step(change)
    assert [model.cache.tolist() for model in ranks.models] == [[0.0], [1.0] * 4, [0.0]]
    assert [model.norm.running_mean[0].item() for model in ranks.models] == [0.5] * 3


def test_what_was_loaded_counts_as_unchanged(monkeypatch):
    ranks = Threads(monkeypatch, Holder(), Holder(), Holder())
    for model, own in zip(ranks.models, ranks.each, strict=True):
        model.norm.running_mean.fill_(1 / 3)
        own.remember()
    ranks.step(lambda *_: None)
    assert ranks.sizes == []


def test_one_process_compares_nothing():
    assert Buffers(Ranks(), Holder()).marks(CPU).tolist() == []
