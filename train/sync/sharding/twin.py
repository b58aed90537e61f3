"""A second form of a model: the same buffers, parameters of its own, or none but their form."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from muster.errors import UsageError

Places = list[tuple[nn.Module, str]]  # where a parameter is held: several, if it is tied


def twin_of(model: nn.Module) -> nn.Module:
    """Modules like those of `model`, that hold the very same parameters and buffers.

    Raises:
        UsageError: it has something that cannot be copied.
    """
    same: list[Any] = [*model.parameters(), *model.buffers()]
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


def places_of(model: nn.Module) -> dict[nn.Parameter, Places]:
    """Where each parameter of `model` is held, in the order of their names."""
    found: dict[nn.Parameter, Places] = {param: [] for param in model.parameters()}
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                found[param].append((module, name))
    return found


def put(param: nn.Parameter, places: Places) -> None:
    """Have all of `places` hold `param`."""
    for module, name in places:
        module._parameters[name] = param


def form_of(param: nn.Parameter) -> nn.Parameter:
    """A parameter that has all of `param` but its values."""
    return nn.Parameter(torch.empty_like(param, device="meta"), param.requires_grad)
