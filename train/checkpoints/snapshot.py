"""Convert model and optimizer to tensors by name, the same on every rank, and back."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Tensors = dict[str, Tensor]


def of_model(
    model: nn.Module, values: Iterable[tuple[nn.Parameter, Tensor]], *, keeps: bool
) -> Tensors:
    """CPU copies of all parameters and buffers; a shared one once, under its first name.

    `values` are those of the parameters of `model`. To take the next one may be a collective, so a
    rank that does not store them iterates over them as well.
    """
    names = {param: name for name, param in model.named_parameters()}
    tensors = {names[param]: _copy(tensor) for param, tensor in values if keeps}
    return tensors | {name: _copy(buffer) for name, buffer in model.named_buffers() if keeps}


def of_optimizer(
    model: nn.Module, states: Iterable[tuple[nn.Parameter, Mapping[str, Any]]], *, keeps: bool
) -> Tensors:
    """CPU copies of the optimizer's state, as `PARAMETER/KEY`; numbers become tensors.

    `states` are those of the parameters of `model`, and as collective as those of `of_model`.
    """
    names = {param: name for name, param in model.named_parameters()}
    return {
        f"{names[param]}/{key}": _copy(torch.as_tensor(value))
        for param, state in states
        for key, value in state.items()
        if keeps and value is not None
    }


@torch.no_grad()
def into_model(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    set_values: Callable[[nn.Parameter, Tensor], None],
) -> None:
    """Copy `tensors`, made by `of_model`, into buffers, and by `set_values` into parameters."""
    for name, param in model.named_parameters():
        set_values(param, tensors[name])
    for name, buffer in model.named_buffers():
        buffer.copy_(tensors[name])


def optimizer_state(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
    """The state of each parameter of `model` that `of_optimizer` stored: new copies, one by one.

    They are on the device where `optimizer` needs them.
    """
    group = optimizer.param_groups[0]
    # only fused and capturable optimizers count their steps on the device
    counts_there = group.get("fused") or group.get("capturable")
    device = group["params"][0].device
    states: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        states.setdefault(name, {})[key] = tensor
    for name, param in model.named_parameters():
        if name in states:
            copies: dict[str, Any] = {}
            for key, tensor in states[name].items():
                at = "cpu" if key == "step" and not counts_there else device
                copies[key] = tensor.to(at, copy=True)
            yield param, copies


def misfits(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Why `tensors` are not those of `model`, one line each."""
    wanted = _tensors(model)
    for name in sorted(wanted.keys() | tensors.keys()):
        want, got = _form(wanted.get(name)), _form(tensors.get(name))
        if want != got:
            yield f"its {name} is {got}, this model's is {want}; see --model and --precision"


def _form(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape)} in {tensor.dtype}"


def _tensors(model: nn.Module) -> Tensors:
    """Parameters and buffers; torch names one that several modules share once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
