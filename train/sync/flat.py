"""Tensors side by side in one, so that one collective moves many of them.

A collective costs a fixed time beside its bytes, so one for each of a model's hundreds of
parameters is slow.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T", bound=Tensor)
LITTLE = 1 / 8  # of a group


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


def dense_gradient(param: nn.Parameter) -> Tensor:
    """The gradient of `param`, which has one afterwards, and a dense one: zeros if it had none."""
    if param.grad is None:
        param.grad = torch.zeros_like(param)
    elif param.grad.is_sparse:
        param.grad = param.grad.to_dense()
    return param.grad
