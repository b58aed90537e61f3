"""A second form of a model: modules of its own with the very same parameters and buffers."""

import copy
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from muster.errors import UsageError


def twin_of(model: nn.Module) -> nn.Module:
    """Modules like those of `model`, that hold the very same parameters.

    Buffers they have in common: one that is put in another's place is so in both.

    Raises:
        UsageError: it has something that cannot be copied.
    """
    same: list[Any] = [*model.parameters(), *(module._buffers for module in model.modules())]
    values = (value for module in model.modules() for value in vars(module).values())
    same += [value for value in values if isinstance(value, dist.ProcessGroup)]
    try:
        return copy.deepcopy(model, {id(one): one for one in same})
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"sync mode fsdp needs a copy of the model's modules, but {reason}; use zero1"
        ) from error


def unshareable(model: nn.Module) -> Iterator[str]:
    """Why torch's `fully_shard` would not take `model`; one line each."""
    for name, param in model.named_parameters():
        if param.ndim == 0:
            yield (
                f"sync mode fsdp cannot share out the model's parameter {name}, a number without "
                "a dimension; give it the shape (1,), or use zero1"
            )
    kinds = {param.dtype: name for name, param in model.named_parameters() if param.requires_grad}
    if len(kinds) > 1:
        found = ", ".join(f"{name} is {str(dtype)[6:]}" for dtype, name in kinds.items())
        yield f"sync mode fsdp trains parameters of one type, but {found}; use zero1"
