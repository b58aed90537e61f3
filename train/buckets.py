"""Gradients side by side in one tensor, so that one collective moves many of them."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)
LITTLE = 1 / 8  # of a bucket


class Bucket:
    """The gradients of some parameters of one dtype, as parts of the tensor `flat` (n,).

    That tensor is there from the first gradient that comes until they are let go: while the next
    forward pass fills the memory with activations, no bucket is in it. A gradient alone in its
    bucket stays where the backward pass has put it.
    """

    flat: Tensor

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        self._place: dict[nn.Parameter, Tensor] = {}
        self._taken: set[nn.Parameter] = set()
        self._had: set[nn.Parameter] = set()

    @property
    def is_full(self) -> bool:
        return len(self._taken) == len(self.params)

    @property
    def views(self) -> list[Tensor]:
        """The parts of `flat`, each in the shape of its parameter."""
        return list(self._place.values())

    @torch.no_grad()
    def take(self, param: nn.Parameter) -> None:
        """Move its gradient here; one that is missing counts as zero."""
        gradient = param.grad
        if gradient is not None and len(self.params) == 1 and _is_own(gradient):
            self._lay_out(gradient.view(-1))
        else:
            if not self._taken:
                self._lay_out(param.new_empty(sum(one.numel() for one in self.params)))
            _fill(self._place[param], gradient)
        self._taken.add(param)
        if gradient is not None:
            self._had.add(param)
            param.grad = None  # its memory is free from here on

    def _lay_out(self, flat: Tensor) -> None:
        self.flat = flat
        parts = zip(self.params, flat.split([one.numel() for one in self.params]), strict=True)
        self._place = {param: part.view_as(param) for param, part in parts}

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
        self._place.clear()
        del self.flat


def _fill(place: Tensor, gradient: Tensor | None) -> None:
    if gradient is None:
        place.zero_()
    else:
        place.copy_(gradient.to_dense() if gradient.is_sparse else gradient)


def _is_own(gradient: Tensor) -> bool:
    """Whether it is in one piece, and no other's: autograd may let two gradients share memory."""
    if gradient.is_sparse or not gradient.is_contiguous():
        return False
    storage = gradient.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)
    return holders == 2  # the gradient, and `storage` itself


def groups(tensors: Sequence[T], limit_bytes: int) -> list[list[T]]:
    """What is to go together: of one dtype, and of at most `limit_bytes`, or a single tensor.

    One of half as much or more is a group by itself: so it need not be copied. What came before it
    does not wait for what comes after it, unless it is too little to be worth a collective.
    Groups come in the order in which they are complete, if `tensors` come one after the other.
    """
    found: list[list[int]] = []
    open_ones: dict[torch.dtype, tuple[list[int], int]] = {}  # each with its bytes
    for at, tensor in enumerate(tensors):
        if 2 * tensor.nbytes >= limit_bytes:
            found.append([at])
            open_ones = {
                dtype: (group, used)
                for dtype, (group, used) in open_ones.items()
                if used < LITTLE * limit_bytes
            }
            continue
        group, used = open_ones.get(tensor.dtype, (None, 0))
        if group is None or used + tensor.nbytes > limit_bytes:
            group, used = [], 0
            found.append(group)
        group.append(at)
        open_ones[tensor.dtype] = group, used + tensor.nbytes
    found.sort(key=lambda group: group[-1])
    return [[tensors[at] for at in group] for group in found]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All values of `tensors`, one after the other: a copy."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Give `tensors` the values of `flat`, which `flatten` put so."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
