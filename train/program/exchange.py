"""The exchange of the ranks after a step's passes: one small collective of constant shape.

The row of a rank is [loss, norm, stop, save, busy], in float64. The trainer adds a mark for each
buffer and for each gradient that the rank has: as many in every step. The shape does not depend on
whether a program has checkpoints. All ranks decide from the same rows, after the same step, whether
to stop or save. So a signal that reaches one rank never separates the ranks.
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

NO_REQUESTS = StepRequests()


class RequestSource(Protocol):
    """The checkpoints of a program."""

    def requests(self, step: int) -> StepRequests:
        """What this rank requests after `step`."""


class Shared:
    """The rows of all ranks after one step. Reading them makes the host wait for the device."""

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
        """The norms of the ranks' own gradients in a mode that leaves these local; else zeros."""
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
    requests: StepRequests = NO_REQUESTS,
    norm: Tensor | float = 0.0,
    more: Sequence[Tensor] = (),
) -> Shared:
    """Give the other ranks this one's numbers, and get theirs: one all_gather, on every rank.

    `loss` and `norm` have one element each. `more` are tensors (n,) on the device of `loss`; n is
    the same on every rank. The host does not wait for the device.
    """
    device = loss.device if isinstance(loss, Tensor) else ranks.device
    # The norm is a tensor only where the loss is. Tensors stay on their device: the host does not
    # wait for it.
    numbers = [loss, norm]
    tensors = [value.reshape(1).double() for value in numbers if isinstance(value, Tensor)]
    row = torch.tensor([*numbers[len(tensors) :], *requests], dtype=torch.float64, device=device)
    if tensors:
        row = torch.cat([*tensors, row])
    if not more:
        return Shared([ranks.all_gather(row)])
    parts = [row, *(part.to(row) for part in more)]
    rows = ranks.all_gather(torch.cat(parts))
    return Shared(rows.split([len(part) for part in parts], dim=1))


class ProgramRequests:
    """The requests of a program's checkpoints, sent with the loss of a step that it records.

    These are the checkpoints whose `after_step` was called last. They are held weakly, since they
    hold a model. Python's collector may take them on some ranks only, which then request nothing.
    """

    def __init__(self) -> None:
        self._source: weakref.ref[RequestSource] | None = None
        self._last_exchange: tuple[int, Shared] | None = None  # the step, and its rows

    def with_loss(self, ranks: Ranks, step: int, loss: float) -> Shared:
        """Exchange the loss of `step`, and the requests after it."""
        source = None if self._source is None else self._source()
        shared = exchange(ranks, loss, StepRequests() if source is None else source.requests(step))
        self._last_exchange = step, shared
        return shared

    def after(self, ranks: Ranks, step: int, source: RequestSource) -> StepRequests:
        """What some rank requests after `step`; an exchange, unless the loss was sent with it."""
        is_last = self._source is not None and self._source() is source
        last_exchange, self._last_exchange = self._last_exchange, None
        self._source = weakref.ref(source)
        if is_last and last_exchange is not None and last_exchange[0] == step:
            return last_exchange[1].requests
        return exchange(ranks, requests=source.requests(step)).requests


of_program = ProgramRequests()
