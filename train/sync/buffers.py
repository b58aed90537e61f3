"""Buffers that the forward pass changes, such as running statistics, stay equal on all ranks."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .batchnorm import synced_buffers
from .flat import flatten, spread
from .ranks import Ranks

SAME, CHANGED, RESHAPED = 0.0, 1.0, 2.0


class Kept(NamedTuple):
    """A buffer, and what it was after the last step."""

    own: dict[str, Tensor | None]  # its module's
    name: str
    before: Tensor

    def now(self) -> Tensor:
        """What is there now: a forward pass may put another tensor in its place."""
        buffer = self.own[self.name]
        assert buffer is not None
        return buffer

    def mark(self, device: torch.device) -> Tensor:
        """What has become of it since."""
        buffer, before = self.own.get(self.name), self.before
        if buffer is None or (buffer.shape, buffer.dtype) != (before.shape, before.dtype):
            return torch.tensor(RESHAPED, device=device)
        return (buffer != before).any().to(device)


class Buffers:
    """Averages over the ranks what a step has changed on some rank; constants keep their bits.

    A step calls `marks`, lets the ranks exchange these, and calls `average`. Constants are found
    by comparing with a copy of the last step's values: a version counter is not moved by kernels
    that write running statistics, nor through `.data`. A buffer that takes another shape is a
    cache, which each rank fills by itself; from then on it is left alone.
    """

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self._ranks, self._model = ranks, model
        self.remember()

    def remember(self) -> None:
        """Take the buffers as they are, equal on all ranks, for the last step's."""
        self._kept: list[Kept] = []
        seen = {id(buffer) for buffer in synced_buffers(self._model)}
        for module in self._model.modules() if self._ranks.world_size > 1 else ():
            for name, one in module._buffers.items():
                if one is not None and id(one) not in seen and _has_fractions(one):
                    seen.add(id(one))
                    self._kept.append(Kept(module._buffers, name, one.detach().clone()))

    @torch.no_grad()
    def marks(self, device: torch.device) -> Tensor:
        """Whether each buffer is the SAME, CHANGED or RESHAPED on this rank: float64 (buffers,)."""
        none = torch.zeros(0, dtype=torch.float64, device=device)
        return (
            torch.stack([one.mark(device).double() for one in self._kept]) if self._kept else none
        )

    @torch.no_grad()
    def average(self, share: float, marks: Tensor) -> None:
        """Make changed buffers their mean over ranks, weighted by samples: the same bits on all.

        `marks` are those of all ranks, (world_size, buffers). `share` is this rank's part of the
        global batch; over all ranks it sums to one. A rank without samples adds zeros, whatever
        its dummy has left in its buffers.
        """
        if not self._kept:
            return
        found = marks.amax(0).tolist()
        changed = [one for one, mark in zip(self._kept, found, strict=True) if mark == CHANGED]
        if changed:
            # by `data`: a graph that is kept for another backward pass does not mind
            own = [_real(one.now().data) for one in changed]
            # in float64, where shares of equal numbers add up to that number again
            flat = flatten([one.double() for one in own])
            flat = flat.mul_(share) if share > 0 else torch.zeros_like(flat)
            spread(self._ranks.all_reduce(flat, dist.ReduceOp.SUM), own)
            for one in changed:
                one.before.copy_(one.now())
        self._kept = [one for one, mark in zip(self._kept, found, strict=True) if mark != RESHAPED]


def _has_fractions(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()


def _real(buffer: Tensor) -> Tensor:
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer
