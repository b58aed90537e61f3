"""torch's `fully_shard`: between steps each rank holds only a part of every parameter.

The trained model is a twin of the given one. `fully_shard` splits the twin's parameters along their
first dimension. All ranks gather a layer when it is used, forward and backward, and free it
afterwards; its gradients are reduced to the ranks' parts at once. The given model has only the
shapes of its parameters, except in `whole`, where it gets all values to be evaluated. It is saved
and loaded one parameter at a time.

One parameter of shape (rows, width) is represented by four objects on each of `world_size` ranks:

    given model's parameter   its shape only: one value, expanded to (rows, width)
      `shares[given].part`    what this rank's optimizer updates: (values of its rows,)
      `parts[i]` of the twin  a DTensor over the same memory; the backward pass sets its `.grad`
      `in_passes[i]`          the whole one, (rows, width), while its layer is gathered

A step: gather a layer, use it, free it; the same in the backward pass; reduce_scatter its gradient
into the DTensor's `.grad`; `sync` moves that to `part.grad`; the optimizer updates `part`, and so
the memory of the twin.

Y. Zhao et al., "PyTorch FSDP: Experiences on scaling fully sharded data parallel", 2023.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from muster.errors import UsageError

from ..ranks import CollectiveLedger, all_gather_single, reduce_scatter_single, waits
from ..sharding.parts import PartedSync, Share, repeated_layers


class Gather:
    """All-gather: each rank's part of some parameters (n,) becomes (ranks * n,)."""

    def __init__(self, ledger: CollectiveLedger) -> None:
        self._ledger = ledger

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> Any:
        self._ledger.gradient("all_gather", input_tensor)
        gather: Callable[..., Any] = all_gather_single
        return waits.during(gather, output_tensor, input_tensor, **how)


class ReduceScatter(Gather):
    """Gradients (ranks * n,) become the mean, or the sum, of this rank's part of them: (n,).

    gloo's reduce_scatter is an all_reduce and sends twice as much. So each rank sends every other
    rank its part.
    """

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> Any:
        if input_tensor.is_cuda:
            self._ledger.gradient("reduce_scatter", input_tensor)
            reduce_scatter_single(output_tensor, input_tensor, **how)
            return
        self._ledger.gradient("all_to_all", input_tensor)
        came = torch.empty_like(input_tensor)
        waits.during(dist.all_to_all_single, came, input_tensor, group=how["group"])
        reduced = torch.mean if how["op"] == dist.ReduceOp.AVG else torch.sum
        reduced(came.view(-1, len(output_tensor)), dim=0, out=output_tensor)


class Fsdp(PartedSync):
    """Every rank sends and receives 2 to 3 (N-1)/N of the parameters' bytes for each micro-batch.

    Every rank must run the same ones of the model's repeated layers, in the same order.
    """

    same_passes = True  # each pass gathers the layers

    def wrap(self, model: nn.Module) -> nn.Module:
        """A twin of `model` to train.

        Raises:
            UsageError: torch cannot split its parameters; the message says why.
        """
        super().wrap(model)
        types = {one.dtype: name for name, one in model.named_parameters() if one.requires_grad}
        if len(types) > 1:
            found = ", ".join(f"{name} is {str(dtype)[6:]}" for dtype, name in types.items())
            raise UsageError(
                f"sync mode fsdp trains parameters of one type, but {found}; use zero1"
            )
        for param in model.parameters():
            param.data = param.data.contiguous()  # fully_shard requires it
        group = self.ranks.own_group(self.options.timeout_s)
        mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type)
        try:
            twin = twin_of(model)
            # modules that are gathered one at a time; the twin is the last
            self._units = [fully_shard(one, mesh=mesh) for one in (*repeated_layers(twin), twin)]
        except Exception as error:
            raise UsageError(
                f"sync mode fsdp cannot take this model: {error}; use zero1"
            ) from error
        self._share_out(model, twin)
        for unit in self._units:
            unit.set_custom_all_gather(Gather(self.ranks.ledger))  # type: ignore[arg-type]
            unit.set_custom_reduce_scatter(ReduceScatter(self.ranks.ledger))  # type: ignore[arg-type]
            if hasattr(unit, "set_reduce_scatter_unused_params"):  # from torch 2.13 on
                unit.set_reduce_scatter_unused_params(True)  # or a rank that lacks one blocks
        return twin

    def _share_out(self, model: nn.Module, twin: nn.Module) -> None:
        """Make this rank's parts, which its optimizer updates; the given model keeps shapes."""
        for unit in self._units:
            unit.unshard()
        in_passes = list(twin.parameters())  # they have no memory between passes
        for unit in self._units:
            unit.reshard()
        parts = list(twin.parameters())
        self._given = dict(zip(parts, model.parameters(), strict=True))
        self._used = set[nn.Parameter]()  # those that the backward pass has given a gradient
        for param, part, used in zip(model.parameters(), parts, in_passes, strict=True):
            row = -(-len(param) // self.ranks.world_size) * param[:1].numel()
            self.shares[param] = Share(param, self.ranks, row, part=_local(part))
            if param.requires_grad:
                used.register_post_accumulate_grad_hook(lambda _, part=part: self._used.add(part))
            param.data = _form(param)

    def part_of(self, param: nn.Parameter) -> nn.Parameter:
        return self.shares[self._given[param]].part

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        root = self._units[-1]  # it holds all the others
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def used(self, model: nn.Module) -> list[bool]:
        return [part in self._used for part in self._given]

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        """Gradients are already the mean; one that no rank has is zeros and becomes None."""
        for part, is_used in zip(self._given, used, strict=True):
            gradient, part.grad = part.grad, None
            self.part_of(part).grad = _local(gradient) if is_used and gradient is not None else None
        self._used.clear()

    @contextmanager
    def whole(self, model: nn.Module, *, keeps: bool = True) -> Iterator[None]:
        for param, values in self.values(model):
            if keeps:
                param.data = values
        try:
            yield
        finally:
            for param in self.shares:
                param.data = _form(param)
            model.train()

    def values(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for param, share in self.shares.items():
            yield param, share.whole(share.part)

    def set_values(self, param: nn.Parameter, values: Tensor) -> None:
        share = self.shares[param]
        share.part.data.copy_(share.part_of(values))


def _form(param: nn.Parameter) -> Tensor:
    """A tensor of the shape of `param` that holds a single value."""
    return torch.zeros((), dtype=param.dtype, device=param.device).expand(param.shape)


def _local(tensor: Tensor) -> Tensor:
    """This rank's values of a tensor that `fully_shard` has split: (values,)."""
    local: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # a DTensor
    return local.view(-1)


def twin_of(model: nn.Module) -> nn.Module:
    """A copy of the modules of `model` that holds the very same parameters.

    Buffers are shared too: a buffer replaced in one of the two is replaced in both.
    """
    same: list[Any] = [*model.parameters(), *(module._buffers for module in model.modules())]
    return copy.deepcopy(model, {id(one): one for one in same})


build = Fsdp
