"""The exchange between ranks after a step's passes: one small collective of constant shape.

The row of a rank is [loss, norm, stop, save, skip], in float64. The trainer adds a mark for each
buffer, and for each gradient whether the rank has it: the same number in every step. A program adds
the number of its step. The shape does not depend on whether a program has checkpoints. All ranks
decide from the same rows, after the same step, whether to stop or save. So a signal that reaches
one rank never separates the ranks.
"""

import math
import weakref
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from muster.errors import UsageError

from ..checkpoints.manager import StepRequests
from ..sync.ranks import HostCopy, Ranks, moved

NO_REQUESTS = StepRequests()


class RequestSource(Protocol):
    """The checkpoints of a program."""

    def requests(self, step: int) -> StepRequests:
        """What this rank requests after `step`."""


class Shared:
    """The rows of all ranks after one step.

    On a GPU, copying them to the host begins immediately. Reading them waits for that copy, not for
    later work of the device.
    """

    def __init__(self, rows: Tensor, lengths: Sequence[int]) -> None:
        """`rows` is (world_size, sum of `lengths`): each rank's numbers, then its `more`."""
        self._on_host = HostCopy(rows)
        self._lengths = lengths

    @cached_property
    def _parts(self) -> Sequence[Tensor]:
        parts: Sequence[Tensor] = self._on_host.wait().split(self._lengths, dim=1)
        return parts

    @property
    def more(self) -> Sequence[Tensor]:
        """The additional tensors of all ranks, each (world_size, n), on the CPU."""
        return self._parts[1:]

    @cached_property
    def _rows(self) -> list[list[float]]:
        rows: list[list[float]] = self._parts[0].tolist()
        return rows

    @property
    def losses(self) -> list[float]:
        return [row[0] for row in self._rows]

    @property
    def norms(self) -> list[float]:
        """The norms of the ranks' own gradients, in a mode that leaves them local; else zeros."""
        return [row[1] for row in self._rows]

    @property
    def loss(self) -> float:
        """The mean of the ranks' losses: NaN for infinities of both signs, inf if it overflows."""
        try:
            return math.fsum(self.losses) / len(self.losses)
        except (OverflowError, ValueError):  # fsum raises where a plain sum is inf or NaN
            return sum(self.losses) / len(self.losses)

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
    """Send this rank's numbers to the other ranks and get theirs: one all_gather, on every rank.

    `loss` and `norm` have one element each. `more` are tensors (n,); n is the same on every rank.
    The host does not wait for the device.
    """
    device = loss.device if isinstance(loss, Tensor) else ranks.device
    # The norm is a tensor only if the loss is one. Tensors stay on their device, so that the host
    # does not wait for it.
    numbers = [loss, norm]
    tensors = [value.reshape(1).double() for value in numbers if isinstance(value, Tensor)]
    row = moved(torch.tensor([*numbers[len(tensors) :], *requests], dtype=torch.float64), device)
    if tensors:
        row = torch.cat([*tensors, row])
    parts = [row, *(moved(part, device, torch.float64) for part in more)]
    rows = ranks.all_gather(torch.cat(parts) if more else row)
    return Shared(rows, [len(part) for part in parts])


class ProgramRequests:
    """The requests of a program's checkpoints, sent with the loss of a step that it records.

    They come from the checkpoints whose `after_step` or `save` was called last. The reference to
    these is weak, since they refer to a model. Python's garbage collector may free them on some
    ranks only, which then request nothing.
    """

    def __init__(self) -> None:
        self._source: weakref.ref[RequestSource] | None = None
        self._last_exchange: tuple[int, Shared] | None = None  # the step, and its rows

    def with_loss(self, ranks: Ranks, step: int, loss: float) -> Shared:
        """Exchange the loss of `step`, and the requests after it.

        Raises:
            UsageError: the ranks are at different steps; raised on every rank.
        """
        source = None if self._source is None else self._source()
        requests = NO_REQUESTS if source is None else source.requests(step)
        shared = _exchange_after(step, ranks, loss, requests, records=True)
        self._last_exchange = step, shared
        return shared

    def after(self, ranks: Ranks, step: int, source: RequestSource) -> StepRequests:
        """Return what any rank requests after `step`; exchange it, unless sent with the loss.

        Raises:
            UsageError: the ranks are at different steps; raised on every rank.
        """
        is_last = self._source is not None and self._source() is source
        last_exchange, self._last_exchange = self._last_exchange, None
        self._source = weakref.ref(source)
        if is_last and last_exchange is not None and last_exchange[0] == step:
            return last_exchange[1].requests
        return _exchange_after(step, ranks, 0.0, source.requests(step), records=False).requests


def _exchange_after(
    step: int, ranks: Ranks, loss: float, requests: StepRequests, *, records: bool
) -> Shared:
    shared = exchange(ranks, loss, requests, more=[torch.tensor([step, records])])
    first_ranks = dict[tuple[int, int], int]()  # by step and kind of call
    for rank, (other, other_records) in enumerate(shared.more[0].tolist()):
        first_ranks.setdefault((int(other), int(other_records)), rank)
    if len(first_ranks) > 1:
        places = ", ".join(f"rank {rank} at step {step}" for (step, _), rank in first_ranks.items())
        raise UsageError(
            f"{places.replace(' at', ' is at', 1)}; every rank must call muster.record, "
            "after_step and save for the same steps, even if it skips an update"
        )
    return shared


program_requests = ProgramRequests()
