"""Buffers that the forward pass changes, such as running statistics, stay equal on all ranks."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .batchnorm import synced_buffers
from .flat import flatten, spread
from .ranks import Ranks

SAME, CHANGED, RESHAPED = 0.0, 1.0, 2.0


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
        self._places: list[tuple[dict[str, Tensor | None], str]] = []
        self._before: list[Tensor] = []
        if self._ranks.world_size == 1:
            return
        seen = {id(buffer) for buffer in synced_buffers(self._model)}
        for module in self._model.modules():
            for name, buffer in module._buffers.items():
                if buffer is None or id(buffer) in seen or not _has_fractions(buffer):
                    continue
                seen.add(id(buffer))
                self._places.append((module._buffers, name))
                self._before.append(buffer.detach().clone())

    @torch.no_grad()
    def marks(self, device: torch.device) -> Tensor:
        """Whether each buffer is the SAME, CHANGED or RESHAPED on this rank: float64 (buffers,)."""
        if not self._places:
            return torch.zeros(0, dtype=torch.float64, device=device)
        marks = []
        for (own, name), before in zip(self._places, self._before, strict=True):
            buffer = own.get(name)
            if buffer is None or (buffer.shape, buffer.dtype) != (before.shape, before.dtype):
                marks.append(torch.tensor(RESHAPED, device=device))
            else:
                marks.append((buffer != before).any().to(device))
        return torch.stack([mark.double() for mark in marks])

    @torch.no_grad()
    def average(self, share: float, marks: Tensor) -> None:
        """Make changed buffers their mean over ranks, weighted by samples: the same bits on all.

        `marks` are those of all ranks, (world_size, buffers). `share` is this rank's part of the
        global batch; over all ranks it sums to one. A rank without samples adds zeros, whatever
        its dummy has left in its buffers.
        """
        if not self._places:
            return
        found = marks.amax(0).tolist()
        changed = [at for at, mark in enumerate(found) if mark == CHANGED]
        if changed:
            # by `data`: a graph that is kept for another backward pass does not mind
            own = [_real(self._buffer(at).data) for at in changed]
            # in float64, where shares of equal numbers add up to that number again
            flat = flatten([one.double() for one in own])
            flat = flat.mul_(share) if share > 0 else torch.zeros_like(flat)
            spread(self._ranks.all_reduce(flat, dist.ReduceOp.SUM), own)
            for at in changed:
                self._before[at].copy_(self._buffer(at))
        if RESHAPED in found:
            remaining = [at for at, mark in enumerate(found) if mark != RESHAPED]
            self._places = [self._places[at] for at in remaining]
            self._before = [self._before[at] for at in remaining]

    def _buffer(self, at: int) -> Tensor:
        own, name = self._places[at]
        buffer = own[name]  # what is there now: a forward pass may put another tensor in its place
        assert buffer is not None
        return buffer


def _has_fractions(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()


def _real(buffer: Tensor) -> Tensor:
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer
