"""What the ranks tell each other after a step's passes: one small collective of constant shape.

A row of a rank is [loss, norm, stop, save, busy], in float64. The trainer adds a mark for each
buffer, and which gradients the rank has: as many in every step. Whether a program has checkpoints
changes no shape. All ranks decide from the same rows, after the same step, whether to stop or save.
So a signal that reaches one rank never separates the ranks.
"""

import math
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ..checkpoints.manager import StepRequests
from ..sync.ranks import Ranks

NOTHING_ASKED = StepRequests()


class Asked(Protocol):
    """The checkpoints of a program."""

    def requests(self, step: int) -> StepRequests:
        """What this rank requests after `step`."""


class Shared:
    """What all ranks have said after one step. The host waits for the device when it is read."""

    def __init__(self, rows: Sequence[Tensor]) -> None:
        self._numbers = rows[0]  # (world_size, 5)
        self.more = rows[1:]  # each (world_size, n)

    @cached_property
    def _rows(self) -> list[list[float]]:
        rows: list[list[float]] = self._numbers.tolist()
        return rows

    @property
    def losses(self) -> list[float]:
        return [row[0] for row in self._rows]

    @property
    def norms(self) -> list[float]:
        """Of the ranks' own gradients, where a mode leaves these local; else zeros."""
        return [row[1] for row in self._rows]

    @property
    def loss(self) -> float:
        """The mean of the ranks' losses."""
        return math.fsum(self.losses) / len(self.losses)

    @property
    def requests(self) -> StepRequests:
        """What at least one rank requests."""
        return StepRequests(*(any(column) for column in list(zip(*self._rows, strict=True))[2:]))


def exchange(
    ranks: Ranks,
    loss: Tensor | float = 0.0,
    requests: StepRequests = NOTHING_ASKED,
    norm: Tensor | float = 0.0,
    more: Sequence[Tensor] = (),
) -> Shared:
    """Give the other ranks this one's numbers, and have theirs: one collective.

    `more` are tensors (n,) on the device of `loss`, of as many numbers on every rank.
    """
    device = loss.device if isinstance(loss, Tensor) else ranks.device
    # tensors stay on their device: the host does not wait for it
    tensors: list[Tensor] = []
    numbers: list[Tensor | float] = [loss, norm, *requests]
    while isinstance(first := numbers[0], Tensor):
        tensors.append(first.reshape(1).double())
        del numbers[0]
    own = torch.tensor(numbers, dtype=torch.float64, device=device)
    if tensors:
        own = torch.cat([*tensors, own])
    if not more:
        return Shared([ranks.all_gather(own)])
    parts = [own, *(part.to(own) for part in more)]
    rows = ranks.all_gather(torch.cat(parts))
    return Shared(rows.split([len(part) for part in parts], dim=1))


class ProgramRequests:
    """The requests of a program's checkpoints, sent with the loss of a step that it records.

    They are those whose `after_step` was called last. They are held weakly, since they hold a
    model; Python's collector may take them on some ranks only, which then request nothing.
    """

    def __init__(self) -> None:
        self._asked: weakref.ref[Asked] | None = None
        self._replied: tuple[int, Shared] | None = None  # to the requests after a step

    def with_loss(self, ranks: Ranks, step: int, loss: float) -> Shared:
        """Exchange the loss of `step`, and the requests after it."""
        asked = None if self._asked is None else self._asked()
        shared = exchange(ranks, loss, StepRequests() if asked is None else asked.requests(step))
        self._replied = step, shared
        return shared

    def after(self, ranks: Ranks, step: int, asked: Asked) -> StepRequests:
        """What some rank requests of `asked` after `step`: an exchange if the loss had none."""
        is_last = self._asked is not None and self._asked() is asked
        replied, self._replied = self._replied, None
        self._asked = weakref.ref(asked)
        if is_last and replied is not None and replied[0] == step:
            return replied[1].requests
        return exchange(ranks, requests=asked.requests(step)).requests


of_program = ProgramRequests()
