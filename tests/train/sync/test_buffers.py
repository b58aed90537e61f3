"""Buffers that a step has changed become their mean over ranks; others keep their bits."""

import math
from collections.abc import Callable

import torch
from torch import nn

from tests.train.workers import results_of
from train.sync.buffers import Buffers
from train.sync.ranks import Ranks

CPU = torch.device("cpu")
SHARES = (0.75, 0.25, 0.0)  # of ranks with 3 and 1 of 4 samples, and of one without any


class Holder(nn.Module):
    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("turns", torch.tensor([1 + 2j]))
        self.register_buffer("cache", torch.zeros(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("large", torch.tensor(2**62 + 1))
        self.register_buffer("seen", torch.tensor([False, True, False]))
        self.register_buffer("codes", torch.tensor([250, 5], dtype=torch.uint8))
        self.ranks, self.buffers_of_all = ranks, Buffers(ranks, self)

    def step(self, change: Callable[[int], None] = lambda _: None) -> int:
        """Call `change(rank)`, average as in a step, and return how many numbers were added up."""
        change(self.ranks.rank)
        sent = self.ranks.ledger.control
        marks = self.ranks.all_gather(self.buffers_of_all.marks(CPU))
        sent.clear()
        self.buffers_of_all.average(SHARES[self.ranks.rank], marks)
        return sent["all_reduce"] // 8  # in float64


def changed_buffers_become_their_weighted_mean_in_one_collective(model: Holder) -> None:
    def change(rank: int) -> None:
        model.norm.running_mean.fill_((2.0, 6.0, math.nan)[rank])
        model.norm.running_var.data.fill_(1.1)  # the same on all ranks
        if rank == 0:
            model.turns = model.turns * 3  # another tensor in its place

    assert model.step(change) == 2 + 2 + 2
    assert model.norm.running_mean.tolist() == [3.0, 3.0]
    assert model.norm.running_var.tolist() == torch.full((2,), 1.1).tolist()
    assert model.turns.item() == 0.75 * (3 + 6j) + 0.25 * (1 + 2j)
    assert model.mask.tolist() == [0.0, -math.inf] and model.count.item() == 0
    assert model.step() == 0  # nothing has changed


def whole_numbers_become_those_of_rank_0(model: Holder) -> None:

    def change(rank: int) -> None:
        model.count += (4, 8, 99)[rank]
        model.large += 2 if rank < 2 else 0
        model.seen.copy_(
            torch.tensor([[True, False, False], [False, True, True], [True] * 3][rank])
        )
        model.codes.copy_(torch.tensor([[255, 3], [251, 7], [0, 0]][rank]))

    model.step(change)
    assert (model.count.item(), model.large.item()) == (4, 2**62 + 3)
    assert model.seen.tolist() == [True, False, False]
    assert model.codes.tolist() == [255, 3]
    assert model.step() == 0


def a_mask_with_infinities_may_change(model: Holder) -> None:
    model.step(lambda _: model.mask.copy_(torch.tensor([-math.inf, 5.0])))
    assert model.mask.tolist() == [-math.inf, 5.0]


def a_cache_that_grows_on_one_rank_is_left_alone(model: Holder) -> None:
    def change(rank: int) -> None:
        model.norm.running_mean += rank
        if rank == 1:
            model.cache = torch.ones(4)

    for _ in range(2):
        model.step(change)
    assert model.cache.tolist() == ([1.0] * 4 if model.ranks.rank == 1 else [0.0])
    assert model.norm.running_mean[0].item() == 0.5


def what_was_loaded_counts_as_unchanged(model: Holder) -> None:
    model.norm.running_mean.fill_(1 / 3)
    model.buffers_of_all.remember()
    assert model.step() == 0


PROMISES = (
    changed_buffers_become_their_weighted_mean_in_one_collective,
    whole_numbers_become_those_of_rank_0,
    a_mask_with_infinities_may_change,
    a_cache_that_grows_on_one_rank_is_left_alone,
    what_was_loaded_counts_as_unchanged,
)


def work(ranks: Ranks) -> None:
    for promise in PROMISES:
        promise(Holder(ranks))


def test_changed_buffers_become_their_mean_and_others_stay(tmp_path):
    results_of(work, len(SHARES), tmp_path)


def test_single_process_compares_no_buffers():
    assert Holder(Ranks()).buffers_of_all.watched == []
