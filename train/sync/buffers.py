"""Keep buffers that the forward pass changes, such as running statistics, equal on all ranks."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .batchnorm import synced_layers
from .ranks import Ranks, flatten, unflatten

SAME, CHANGED, RESHAPED = 0.0, 1.0, 2.0


class Watched(NamedTuple):
    """A buffer, and its value after the last step."""

    own: dict[str, Any]  # its module's dict: a forward pass may put another tensor in its place
    name: str
    before: Tensor

    def mark(self, device: torch.device) -> Tensor:
        """Return how the buffer has changed since the last step: SAME, CHANGED or RESHAPED."""
        now, before = self.own.get(self.name), self.before
        if now is None or (now.shape, now.dtype) != (before.shape, before.dtype):
            return torch.tensor(RESHAPED, device=device)
        changed: Tensor = (now != before).any()
        return changed.to(device)

    def values(self) -> Tensor:
        """Return its current values, as real numbers."""
        now: Tensor = self.own[self.name].data  # `data`, so that a retained graph stays valid
        return torch.view_as_real(now) if now.is_complex() else now


class Buffers:
    """Average, over the ranks, each buffer that a step has changed on some rank.

    Buffers of whole numbers or booleans get rank 0's values instead.

    If there are buffers to watch, a step calls `marks`, lets the ranks exchange the marks, and
    calls `average`. Constants are found by comparison with a copy of the last step's values: a
    version counter does not notice kernels that write running statistics, or writes through
    `.data`. A buffer whose shape changes is a cache, which each rank fills on its own; from then on
    it is ignored.
    """

    def __init__(self, ranks: Ranks, model: nn.Module) -> None:
        self._ranks, self._model = ranks, model
        self.remember()

    def remember(self) -> None:
        """Store the current buffers, equal on all ranks, as the values after the last step."""
        self.watched: list[Watched] = []
        # A synchronised BatchNorm already has the same bits on every rank.
        seen = {
            buffer
            for layer in synced_layers(self._model)
            for buffer in layer.buffers(recurse=False)
        }
        for module in self._model.modules() if self._ranks.world_size > 1 else ():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer not in seen and not buffer.is_quantized:
                    seen.add(buffer)
                    self.watched.append(Watched(module._buffers, name, buffer.detach().clone()))

    @torch.no_grad()
    def marks(self, device: torch.device) -> Tensor:
        """Mark each buffer as SAME, CHANGED or RESHAPED on this rank: float64 (buffers,)."""
        return torch.stack([watched.mark(device).double() for watched in self.watched])

    @torch.no_grad()
    def average(self, share: float, marks: Tensor) -> None:
        """Average changed buffers over ranks, weighted by samples; all ranks get the same bits.

        Besides the all_reduce of the means, rank 0's whole numbers are broadcast if any have
        changed.

        `marks` are the marks of all ranks, (world_size, buffers). `share` is this rank's part of
        the global batch; all shares add up to one. A rank without samples adds zeros, whatever its
        dummy batch left in its buffers.
        """
        maxima = marks.amax(0).tolist()
        changed = [
            watched for watched, mark in zip(self.watched, maxima, strict=True) if mark == CHANGED
        ]
        values = [watched.values() for watched in changed]
        if real := [value for value in values if value.is_floating_point()]:
            # in float64, so that shares of equal numbers add up to that number exactly
            flat = flatten([value.double() for value in real])
            flat = flat.mul_(share) if share > 0 else torch.zeros_like(flat)
            unflatten(self._ranks.all_reduce(flat), real)
        if whole := [value for value in values if not value.is_floating_point()]:
            numbers = [value.long() for value in whole]  # gloo does not send every type
            self._ranks.broadcast(numbers)
            for value, number in zip(whole, numbers, strict=True):
                value.copy_(number)
        for watched in changed:
            watched.before.copy_(watched.own[watched.name])
        seen = zip(self.watched, maxima, strict=True)
        self.watched = [watched for watched, mark in seen if mark != RESHAPED]
