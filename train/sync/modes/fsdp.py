"""torch's `fully_shard`: between steps each rank holds only a part of every parameter.

`fully_shard` splits the model's parameters in place, along their first dimension, one layer after
the other. From then on the model's parameters are DTensors. The optimizer updates these, and so its
state is split as well. All ranks gather a layer when it is used, forward and backward, and free it
afterwards. Its gradients are immediately reduced to the ranks' parts. An evaluation runs the same
model, so no rank ever holds more than in training. The model is saved and loaded one parameter at a
time.

These parts are ours, not torch's:

- The collectives. gloo's reduce_scatter is an all_reduce and sends twice as much. In addition, each
  collective is counted for the step's record.
- The norm of all gradients: `ShardedSync.norm`, one number from each rank.
- Saving. `torch.distributed.checkpoint.state_dict` runs a step of an optimizer that has no state
  yet, gives all values at once and only to rank 0, and broadcasts them for loading. Here every file
  system has a rank that writes, and each rank reads its own part from the file.

Y. Zhao et al., "PyTorch FSDP: Experiences on scaling fully sharded data parallel", 2023.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from muster.errors import UsageError

from ..ranks import CollectiveLedger, all_gather_single, reduce_scatter_single, waits
from ..sharding.layers import repeated_layers
from ..sharding.parts import NUMBERS, ShardedSync


class Gather:
    """All-gather: each rank's part of some parameters (n,) becomes (ranks * n,)."""

    def __init__(self, ledger: CollectiveLedger) -> None:
        self._ledger = ledger

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: Any) -> Any:
        self._ledger.gradient("all_gather", input_tensor)
        gather: Callable[..., Any] = all_gather_single
        return waits.during(gather, output_tensor, input_tensor, **options)


class ReduceScatter(Gather):
    """Gradients (ranks * n,) become the mean, or the sum, of this rank's part of them: (n,).

    On CPUs each rank sends every other rank that rank's part.
    """

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: Any) -> Any:
        if input_tensor.is_cuda:
            self._ledger.gradient("reduce_scatter", input_tensor)
            reduce_scatter_single(output_tensor, input_tensor, **options)
            return
        self._ledger.gradient("all_to_all", input_tensor)
        received = torch.empty_like(input_tensor)
        waits.during(dist.all_to_all_single, received, input_tensor, group=options["group"])
        reduced = torch.mean if options["op"] == dist.ReduceOp.AVG else torch.sum
        reduced(received.view(-1, len(output_tensor)), dim=0, out=output_tensor)


class Fsdp(ShardedSync):
    """Every rank sends and receives 2 to 3 (N-1)/N of the parameters' bytes for each micro-batch.

    Every rank must run the same repeated layers of the model, in the same order.
    """

    same_passes = True  # each pass gathers the layers

    def wrap(self, model: nn.Module) -> nn.Module:
        """Split `model` in place, and return it.

        Raises:
            UsageError: torch cannot split its parameters; the message says why.
        """
        super().wrap(model)
        types = {
            param.dtype: name for name, param in model.named_parameters() if param.requires_grad
        }
        if len(types) > 1:
            names = ", ".join(f"{name} is {str(dtype)[6:]}" for dtype, name in types.items())
            raise UsageError(
                f"sync mode fsdp needs all parameters to have the same type, but {names}"
                "\ntip: use zero1"
            )
        self._used = set[nn.Parameter]()  # parameters that the backward pass gave a gradient
        group = self.ranks.own_group(self.options.timeout_s)
        mesh = DeviceMesh.from_group(group, self._device.type)
        try:
            # modules that are gathered one at a time; the model is the last
            self._split_modules = [
                self._split(module, mesh) for module in (*repeated_layers(model), model)
            ]
        except Exception as error:
            raise UsageError(
                f"sync mode fsdp does not support this model: {error}\ntip: use zero1"
            ) from error
        for module in self._split_modules:
            module.set_custom_all_gather(Gather(self.ranks.ledger))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(ReduceScatter(self.ranks.ledger))  # type: ignore[arg-type]
            if hasattr(module, "set_reduce_scatter_unused_params"):  # from torch 2.13 on
                module.set_reduce_scatter_unused_params(True)  # or a rank that lacks one blocks
        self._params = list(model.parameters())
        model.register_forward_hook(self._free_rest)
        return model

    def _split(self, module: nn.Module, mesh: DeviceMesh) -> FSDPModule:
        """Split the parameters of `module`; record in `_used` which of them get a gradient."""
        for param in module.parameters():
            if not isinstance(param, DTensor):
                param.data = param.data.contiguous()  # fully_shard requires it
        kind = type(module).__name__
        split: FSDPModule = fully_shard(module, mesh=mesh)
        type(split).__name__ = kind  # torch derives a class; some models save their class's name
        parts = list(module.parameters())
        split.unshard()
        for part, in_passes in zip(parts, module.parameters(), strict=True):
            if in_passes is not part and part.requires_grad:
                in_passes.register_post_accumulate_grad_hook(
                    lambda _, part=part: self._used.add(part)
                )
        split.reshard()
        return split

    def _free_rest(self, *_: Any) -> None:
        """Free the parameters outside of layers; in training the backward pass does that."""
        if not torch.is_grad_enabled():
            self._split_modules[-1].reshard()

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        root = self._split_modules[-1]  # it contains all the others
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def used(self, model: nn.Module) -> list[bool]:
        return [param in self._used for param in self._params]

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        """Gradients are already averaged; one that no rank has is zeros, and becomes None here."""
        for param, is_used in zip(self._params, used, strict=True):
            if not is_used:
                param.grad = None
        self._used.clear()

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return super().norm([_local(gradient).view(-1) for gradient in gradients])

    @contextmanager
    def full_parameters(self, model: nn.Module) -> Iterator[None]:
        values = {
            param: nn.Parameter(tensor.cpu(), requires_grad=param.requires_grad)
            for param, tensor in self.values(model)
            if self.ranks.rank == 0
        }
        split = [
            (module, name, param)
            for module in model.modules()
            for name, param in module._parameters.items()
            if param in values
        ]
        for module, name, param in split:
            module._parameters[name] = values[param]
        try:
            yield
        finally:
            for module, name, param in split:
                module._parameters[name] = param

    @torch.no_grad()
    def values(self, model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
        for param in self._params:
            yield param, self._gathered(param)

    @torch.no_grad()
    def set_values(self, param: nn.Parameter, values: Tensor) -> None:
        _local(param).copy_(self._part_of(values, param))

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        for param in self._params:
            state = optimizer.state.get(param, {})
            cut = sorted(key for key in state if isinstance(state[key], DTensor))
            yield param, {**state, **{key: self._gathered(state[key]) for key in cut}}

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        optimizer.state[param] = {
            key: value if key in NUMBERS else self._split_like(param, value)
            for key, value in state.items()
        }

    def _gathered(self, tensor: Tensor) -> Tensor:
        """Gather all values of a split tensor. Every rank must call it: one all_gather."""
        self.ranks.note("all_gather", _local(tensor))
        values: Tensor = waits.during(tensor.detach().full_tensor)  # type: ignore[attr-defined]
        return values

    def _part_of(self, values: Tensor, param: nn.Parameter) -> Tensor:
        """This rank's rows of `values`, which has the shape of `param`."""
        begin = self.ranks.rank * -(-len(param) // self.ranks.world_size)
        return values[begin : begin + len(_local(param))]

    def _split_like(self, param: nn.Parameter, values: Tensor) -> DTensor:
        assert isinstance(param, DTensor)
        part = self._part_of(values, param).clone(memory_format=torch.contiguous_format)
        return DTensor.from_local(
            part, param.device_mesh, param.placements,
            run_check=False, shape=param.shape, stride=param.stride(),
        )  # fmt: skip


def _local(tensor: Tensor) -> Tensor:
    """This rank's rows of a tensor that `fully_shard` has split."""
    local: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]  # a DTensor
    return local


build = Fsdp
