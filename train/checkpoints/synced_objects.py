"""A model and its optimizer in a sync mode, which may have split their values over the ranks.

Full tensors are saved by name, the same on every rank. So every mode, on any number of ranks, can
resume a checkpoint of any other mode. A rank holds one full tensor at a time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..sync.base import GradSync

Tensors = Mapping[str, Tensor]
MAX_MISMATCHES = 5  # that are named


class SyncedModel:
    """Parameters and buffers by name, and the sync mode's own tensors; see `Collected`."""

    def __init__(self, model: nn.Module, sync: GradSync, *, forgets: bool = False) -> None:
        """`model`: without the mode's wrapper; `forgets`: the mode starts without a saved state."""
        self._model = model
        self._sync = sync
        self._forgets = forgets

    def own_tensors(self) -> Tensors:
        self._sync.make_replicas_equal(self._model)
        return self._sync.state()

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each tensor with its name; a shared parameter comes once, under its first name."""
        names = {param: name for name, param in self._model.named_parameters()}
        for param, values in self._sync.values(self._model):
            yield names[param], values
        yield from self._model.named_buffers()

    @torch.no_grad()
    def load_collected(self, tensors: Tensors, own_tensors: Tensors) -> None:
        for name, param in self._model.named_parameters():
            self._sync.set_values(param, tensors[name])
        for name, buffer in self._model.named_buffers():
            buffer.copy_(tensors[name])
        self._sync.restore(self._model, {} if self._forgets else own_tensors)

    def resume_problems(self, tensors: Tensors) -> Iterator[str]:
        """A line for each of the first few tensors that do not match this model's."""
        wanted = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        forms = (
            (name, _form(tensors.get(name)), _form(wanted.get(name)))
            for name in sorted(wanted.keys() | tensors.keys())
        )
        mismatches = [
            f"its {name} is {saved}, but this model's is {wanted_form}"
            "\ntip: check --model and --precision"
            for name, saved, wanted_form in forms
            if saved != wanted_form
        ]
        yield from mismatches[:MAX_MISMATCHES]


class SyncedOptimizer:
    """The optimizer's state as `PARAMETER/KEY`; numbers become tensors. See `Collected`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, sync: GradSync) -> None:
        self._model = model
        self._optimizer = optimizer
        self._sync = sync

    def own_tensors(self) -> Tensors:
        return {}

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        names = {param: name for name, param in self._model.named_parameters()}
        for param, state in self._sync.optimizer_state(self._model, self._optimizer):
            for key, value in state.items():
                if value is not None:
                    yield f"{names[param]}/{key}", torch.as_tensor(value)

    def load_collected(self, tensors: Tensors, own_tensors: Tensors) -> None:
        """Copy each parameter's state to where it is needed, one parameter at a time."""
        group = self._optimizer.param_groups[0]
        # only fused and capturable optimizers count their steps on the device
        counts_there = group.get("fused") or group.get("capturable")
        device = group["params"][0].device
        states: dict[str, dict[str, Tensor]] = {}
        for full, tensor in tensors.items():
            name, _, key = full.rpartition("/")
            states.setdefault(name, {})[key] = tensor
        for name, param in self._model.named_parameters():
            if name in states:
                copies: dict[str, Any] = {}
                for key, tensor in states[name].items():
                    target = "cpu" if key == "step" and not counts_there else device
                    copies[key] = tensor.to(target, copy=True)
                self._sync.set_optimizer_state(self._optimizer, param, copies)


def _form(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape)} in {tensor.dtype}"
