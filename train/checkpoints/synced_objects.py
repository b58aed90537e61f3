"""A model and its optimizer in a sync mode, which may have split their values over the ranks.

They are saved whole, as tensors by name, the same on every rank. A checkpoint of one mode, and of
any number of ranks, is continued in each mode. One tensor at a time is whole in memory.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..sync.base import GradSync

Tensors = Mapping[str, Tensor]
MOST_MISFITS = 5  # that are named


class SyncedModel:
    """Parameters and buffers by name, and what the sync mode remembers; see `Collected`."""

    def __init__(self, model: nn.Module, sync: GradSync, *, forgets: bool = False) -> None:
        """`model` is without the mode's wrapper; with `forgets` the mode starts with nothing."""
        self._model, self._sync, self._forgets = model, sync, forgets

    def own_tensors(self) -> Tensors:
        self._sync.make_replicas_equal(self._model)
        return self._sync.state()

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        """A shared parameter comes once, under its first name."""
        names = {param: name for name, param in self._model.named_parameters()}
        for param, values in self._sync.values(self._model):
            yield names[param], values
        yield from self._model.named_buffers()

    @torch.no_grad()
    def load_collected(self, tensors: Tensors, own: Tensors) -> None:
        for name, param in self._model.named_parameters():
            self._sync.set_values(param, tensors[name])
        for name, buffer in self._model.named_buffers():
            buffer.copy_(tensors[name])
        self._sync.restore(self._model, {} if self._forgets else own)

    def resume_problems(self, tensors: Tensors) -> Iterator[str]:
        """The first few tensors that are not those of this model."""
        wanted = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        forms = (
            (name, _form(tensors.get(name)), _form(wanted.get(name)))
            for name in sorted(wanted.keys() | tensors.keys())
        )
        misfits = [
            f"its {name} is {saved}, this model's is {here}; see --model and --precision"
            for name, saved, here in forms
            if saved != here
        ]
        yield from misfits[:MOST_MISFITS]


class SyncedOptimizer:
    """The optimizer's state as `PARAMETER/KEY`; numbers become tensors. See `Collected`."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, sync: GradSync) -> None:
        self._model, self._optimizer, self._sync = model, optimizer, sync

    def own_tensors(self) -> Tensors:
        return {}

    def collected(self) -> Iterator[tuple[str, Tensor]]:
        names = {param: name for name, param in self._model.named_parameters()}
        for param, state in self._sync.optimizer_state(self._model, self._optimizer):
            for key, value in state.items():
                if value is not None:
                    yield f"{names[param]}/{key}", torch.as_tensor(value)

    def load_collected(self, tensors: Tensors, own: Tensors) -> None:
        for param, state in self._states(tensors):
            self._sync.set_optimizer_state(self._optimizer, param, state)

    def _states(self, tensors: Tensors) -> Iterator[tuple[nn.Parameter, dict[str, Any]]]:
        """New copies of each parameter's state, one parameter at a time, where they are needed."""
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
                    at = "cpu" if key == "step" and not counts_there else device
                    copies[key] = tensor.to(at, copy=True)
                yield param, copies


def _form(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape)} in {tensor.dtype}"
