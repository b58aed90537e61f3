"""Gradients side by side in one tensor, so that one collective moves many of them."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)


class Bucket:
    """The gradients of some parameters of one dtype, as parts of the tensor `flat` (n,)."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        first = params[0]
        sizes = [param.numel() for param in params]
        self.params = list(params)
        self.flat = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        parts = self.flat.split(sizes)
        self.views = [part.view_as(param) for part, param in zip(parts, params, strict=True)]
        self._place = dict(zip(params, self.views, strict=True))
        self._taken: set[nn.Parameter] = set()
        self._had: set[nn.Parameter] = set()

    @property
    def is_full(self) -> bool:
        return len(self._taken) == len(self.params)

    @torch.no_grad()
    def take(self, param: nn.Parameter) -> None:
        """Move its gradient here; one that is missing counts as zero."""
        place, gradient = self._place[param], param.grad
        self._taken.add(param)
        if gradient is None:
            place.zero_()
            return
        self._had.add(param)
        place.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        param.grad = None  # its memory is free from here on

    def take_rest(self) -> None:
        """Likewise all that are not here yet."""
        for param in self.params:
            if param not in self._taken:
                self.take(param)

    def had(self, param: nn.Parameter) -> bool:
        """Whether this rank had a gradient of it."""
        return param in self._had

    def give_back(self, wanted: Sequence[bool]) -> None:
        """Each parameter's gradient is its part of `flat`; None where it is not wanted."""
        for param, place, is_wanted in zip(self.params, self.views, wanted, strict=True):
            param.grad = place if is_wanted else None
        self._taken.clear()
        self._had.clear()


def runs(tensors: Sequence[T], limit_bytes: int) -> list[list[T]]:
    """Runs of `tensors` of one dtype, each of at most `limit_bytes` or of a single tensor."""
    found: list[list[T]] = []
    used = 0
    for tensor in tensors:
        fits = found and used + tensor.nbytes <= limit_bytes
        if fits and found[-1][0].dtype == tensor.dtype:
            found[-1].append(tensor)
            used += tensor.nbytes
        else:
            found.append([tensor])
            used = tensor.nbytes
    return found


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All values of `tensors`, one after the other: a copy."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Give `tensors` the values of `flat`, which `flatten` put so."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
