"""torch's `fully_shard`: between steps each rank has a part of every parameter, and no more.

The model that is trained is a twin of the given one, whose parameters `fully_shard` cuts along
their first dimension. All ranks gather a layer when its turn comes, forward and backward, and let
go of it afterwards; its gradients are reduced to the ranks' parts at once. The given model keeps
its form alone, on the device `meta`, but within `whole`, where it gets all values: so it is
evaluated, saved and loaded as in every other mode.

Y. Zhao et al., "PyTorch FSDP: Experiences on scaling fully sharded data parallel", 2023.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import Optimizer

from muster.errors import refuse

from ..base import GradSync
from ..sharding.layers import repeated_layers
from ..sharding.parts import Parts
from ..sharding.shares import Share
from ..sharding.transport import Gather, ReduceScatter
from ..sharding.twin import Places, form_of, places_of, put, twin_of, unshareable


class Fsdp(GradSync):
    """Every rank sends and receives 2 to 3 (N-1)/N of the parameters' bytes for each micro-batch.

    Every rank has to run the same layers of those that the model repeats, in the same order.
    """

    same_passes = True  # each pass gathers the layers

    def wrap(self, model: nn.Module) -> nn.Module:
        """A twin of `model` to train.

        Raises:
            UsageError: torch cannot share out its parameters, as the message says.
        """
        super().wrap(model)
        if self.ranks.world_size == 1:
            return model
        refuse(unshareable(model))
        for param in model.parameters():
            param.data = param.data.contiguous()  # fully_shard takes no other
        self._device = next(model.parameters()).device
        group = dist.new_group(timeout=timedelta(seconds=self.options.timeout_s))
        self._model, self._twin = model, twin_of(model)
        mesh = DeviceMesh.from_group(group, self._device.type)
        layers = [*repeated_layers(self._twin), self._twin]
        self._units: list[FSDPModule] = [fully_shard(layer, mesh=mesh) for layer in layers]
        self._share_out(self._whole_params())
        gather, reduce_scatter = Gather(self.note), ReduceScatter(self.note)
        for unit in self._units:
            unit.set_custom_all_gather(gather)  # type: ignore[arg-type]
            unit.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]
            unit.set_reduce_scatter_unused_params(True)  # on some rank: that must not hang it
        return self._twin

    def _whole_params(self) -> dict[str, nn.Parameter]:
        """The twin's parameters as the passes use them; between these they are without memory."""
        for unit in self._units:
            unit.unshard()
        params = dict(self._twin.named_parameters())
        for unit in self._units:
            unit.reshard()
        return params

    def _share_out(self, whole: Mapping[str, nn.Parameter]) -> None:
        """This rank's parts, as its optimizer has them; the given model keeps its form alone."""
        self._used: set[nn.Parameter] = set()  # that the backward pass has given a gradient to
        self._sharded: dict[nn.Parameter, nn.Parameter] = {}  # the twin's, by those of the model
        self._shares: dict[nn.Parameter, Share] = {}
        self._places: dict[nn.Parameter, Places] = {}
        parts = dict(self._twin.named_parameters())
        names = {param: name for name, param in self._model.named_parameters()}
        for given, places in places_of(self._model).items():
            param, name = form_of(given), names[given]
            put(param, places)
            if param.requires_grad:
                whole[name].register_post_accumulate_grad_hook(self._mark(param))
            rows = -(-len(given) // self.ranks.world_size)
            share = Share(param, self.ranks, rows * given[:1].numel(), _local(parts[name]))
            self._sharded[param], self._shares[param] = parts[name], share
            self._places[param] = places
        trained = {param: one for param, one in self._shares.items() if param.requires_grad}
        self._parts = Parts(self.ranks, trained)

    def _mark(self, param: nn.Parameter) -> Callable[[Tensor], None]:
        return lambda _: self._used.add(param)

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        if self.ranks.world_size > 1:
            shares = {own: self._shares[param] for param, own in self._sharded.items()}
            self._parts.give_to(optimizer, shares, "fsdp")
        return optimizer

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return self._adding_up() if self.ranks.world_size > 1 else nullcontext()

    @contextmanager
    def _adding_up(self) -> Iterator[None]:
        root = self._units[-1]  # and all within it
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def sync(self, model: nn.Module) -> None:
        self.exchange(model, torch.zeros(0, dtype=torch.float64))

    def exchange(self, model: nn.Module, row: Tensor) -> Tensor:
        """Gradients are the mean already; one that no rank has is to be None, but is zeros."""
        if self.ranks.world_size == 1:
            return row[None]
        rows, used = self.exchange_used(row, [param in self._used for param in self._sharded])
        for (param, own), is_used in zip(self._sharded.items(), used, strict=True):
            gradient, own.grad = own.grad, None
            part = self._shares[param].part
            part.grad = _local(gradient) if is_used and gradient is not None else None
        self._used.clear()
        return rows

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        if self.ranks.world_size == 1:
            return super().clip(params, limit)
        return self._parts.clip(limit, self._device)

    def whole(self, model: nn.Module) -> AbstractContextManager[None]:
        return self._gathered() if self.ranks.world_size > 1 else nullcontext()

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        for mine, its in zip(self._model.modules(), self._twin.modules(), strict=True):
            mine._buffers = dict(its._buffers)  # a forward pass may have put others in their place
        for param, places in self._places.items():
            share = self._shares[param]
            values = self._parts.whole(share, share.part)
            put(nn.Parameter(values, param.requires_grad), places)
        try:
            yield
        finally:
            for param, places in self._places.items():
                put(param, places)
            self._model.train()

    @torch.no_grad()
    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self.ranks.world_size == 1:
            return
        for param, [(module, name), *_] in self._places.items():
            share = self._shares[param]
            share.part.copy_(share.part_of(getattr(module, name)))

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        if self.ranks.world_size == 1:
            return super().optimizer_state(model, optimizer)
        return self._parts.state(optimizer)

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        if self.ranks.world_size == 1:
            super().set_optimizer_state(optimizer, param, state)
        else:
            self._parts.set_state(optimizer, param, state)


def _local(tensor: Tensor) -> Tensor:
    """This rank's values of what `fully_shard` has cut up: (values,)."""
    local: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # a DTensor
    return local.view(-1)


build = Fsdp
