"""Gradients side by side in one tensor, so that one collective moves many of them.

A collective costs a fixed time beside its bytes, so one for each of a model's hundreds of gradients
is slow; one for all could not start before the backward pass has ended. `groups` cuts a model's
parameters into buckets of some MiB, in the order in which their gradients become ready. In a step a
bucket goes through three states: the backward pass fills `.grad` of its parameters (`missing`
counts down to 0); `take` moves these gradients into `flat` and frees them; after the collective on
`flat`, `give_back` makes each `.grad` a view of its part. So a gradient is in memory once at any
time, and after `give_back` the optimizer reads what the collective wrote, without another copy.

    params   (3, 4)  (7,)  (2, 5)
    flat     [12 values | 7 values | 10 values]      (29,), of their dtype
    views    as_strided parts of flat, each with its parameter's size and strides
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)
LITTLE = 1 / 8  # of a bucket


class Bucket:
    """The gradients of some parameters of one dtype, as parts of the tensor `flat` (n,).

    That tensor is there from when they are taken until they are given back: while the next forward
    pass fills the memory with activations, no bucket is in it. A gradient alone in its bucket
    stays where the backward pass has put it.
    """

    flat: Tensor

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        self.params = list(params)
        self.missing = len(self.params)  # gradients that the backward pass has not made yet
        self.had: list[bool] = []  # of each parameter: whether this rank had a gradient of it
        self.views: list[Tensor] = []  # the parts of `flat`, each as parameters get it
        # In memory a gradient lies as its parameter does: fused optimizers take it for granted.
        strides = [torch.empty_like(param, device="meta").stride() for param in params]
        sizes = [param.numel() for param in params]
        begins = accumulate(sizes, initial=0)
        self._forms = [
            (param.size(), stride, begin)
            for param, stride, begin in zip(params, strides, begins, strict=False)
        ]
        self._size = sum(sizes)

    @torch.no_grad()
    def take(self) -> None:
        """Move the gradients here; one that is missing counts as zero."""
        found = [param.grad for param in self.params]
        self.had = [gradient is not None for gradient in found]
        first = found[0]
        if len(found) == 1 and first is not None and self._stays(first):
            self.flat, self.views = first.as_strided((self._size,), (1,)), [first]
        else:
            self.flat = self.params[0].new_empty(self._size)
            self.views = [self.flat.as_strided(*form) for form in self._forms]
            _fill(self.views, found)
        for param in self.params:
            param.grad = None  # its memory is free from here on

    def _stays(self, gradient: Tensor) -> bool:
        """Whether a gradient alone in its bucket can be sent from where it is."""
        return (
            not gradient.is_sparse and gradient.stride() == self._forms[0][1] and _is_own(gradient)
        )

    def give_back(self, wanted: Sequence[bool]) -> None:
        """Each parameter's gradient is its part of `flat`; None where it is not wanted."""
        for param, gradient, is_wanted in zip(self.params, self.views, wanted, strict=True):
            param.grad = gradient if is_wanted else None
        self._let_go()

    @torch.no_grad()
    def add_back(self) -> None:
        """Likewise, to what each parameter's gradient is already."""
        for param, gradient in zip(self.params, self.views, strict=True):
            assert param.grad is not None
            param.grad += gradient
        self._let_go()

    def _let_go(self) -> None:
        self.missing = len(self.params)
        self.views = []
        del self.flat


def _fill(places: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    into, dense = [], []
    for place, gradient in zip(places, gradients, strict=True):
        if gradient is None:
            place.zero_()
        else:
            into.append(place)
            dense.append(gradient.to_dense() if gradient.is_sparse else gradient)
    if into:
        torch._foreach_copy_(into, dense)


def _is_own(gradient: Tensor) -> bool:
    """Whether its memory is no other's: autograd may let two gradients share it."""
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
