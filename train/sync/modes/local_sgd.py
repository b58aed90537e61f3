"""Train each rank alone for --sync-every steps, then step towards the average of all parameters.

With --outer-lr 1 and no momentum the result is the average itself: local SGD. With 0.7 and Nesterov
momentum 0.9 it is DiLoCo.

S. Stich, "Local SGD converges fast and communicates little", ICLR 2019; A. Douillard et al.,
"DiLoCo: Distributed low-communication training of language models", 2023.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..base import DEFAULT_MB, GradSync
from ..ranks import Ranks, flatten, groups, unflatten


class LocalSgd(GradSync):
    """Between two averages replicas differ: each rank has its own gradients, norm and optimizer.

    The loss of a rank with n of M samples is scaled by n W / M, as in all modes. So plain SGD
    with an average after every step equals the exact modes, whatever the split.
    """

    is_exact = False
    _steps = 0  # since the last average
    _is_settled = True

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        self._agreed = [param.detach().clone() for param in _trained(model)]  # at the last average
        momentum = self.options.outer_momentum
        self._outer = SGD(
            self._agreed, lr=self.options.outer_lr, momentum=momentum, nesterov=momentum > 0
        )
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        self._optimizer = optimizer
        return optimizer

    def updated(self, model: nn.Module) -> None:
        self._steps += 1
        self._is_settled = False
        if self._steps == self.options.sync_every:
            self._round(model, replace(self.ranks, carries_gradients=True))

    @torch.no_grad()
    def make_replicas_equal(self, model: nn.Module) -> None:
        if self._is_settled:
            return
        if self._steps:
            self._round(model, self.ranks)
        self._average(self._optimizer_states(_trained(model)), self.ranks)
        self._is_settled = True

    @torch.no_grad()
    def _round(self, model: nn.Module, ranks: Ranks) -> None:
        """Average the parameters, and let the outer optimizer step towards the average.

        Every rank must call it: one all_reduce for each group of parameters.
        """
        trained = _trained(model)
        self._average(trained, ranks)
        for agreed, param in zip(self._agreed, trained, strict=True):
            agreed.grad = agreed - param
        self._outer.step()
        self._outer.zero_grad()
        torch._foreach_copy_(trained, self._agreed)
        self._steps = 0

    def _average(self, tensors: list[Tensor], ranks: Ranks) -> None:
        size = self.options.bucket_bytes(DEFAULT_MB)
        device = self._agreed[0].device
        # most optimizers count their steps on the CPU, wherever the model is; NCCL needs GPU memory
        sent = [tensor.detach().to(device) for tensor in tensors]
        for group in groups(sent, size):
            unflatten(ranks.all_reduce(flatten(group)) / ranks.world_size, group)
        for tensor, average in zip(tensors, sent, strict=True):
            if tensor.device != device:
                tensor.copy_(average)

    def _optimizer_states(self, trained: list[Tensor]) -> list[Tensor]:
        """Return the optimizer's floating-point state, the same number of tensors on every rank.

        Every rank must call it: one all_reduce of counts.

        A rank that never used a parameter has no state for it yet; there the state starts as zeros.
        """
        states = [_numbers(self._optimizer.state[param]) for param in trained]
        counts = torch.tensor([len(state) for state in states], device=trained[0].device)
        most = self.ranks.all_reduce(counts, dist.ReduceOp.MAX).tolist()
        other, known = max(zip(trained, states, strict=True), key=lambda pair: len(pair[1]))
        for param, state, count in zip(trained, states, most, strict=True):
            if len(state) < count:
                for key, tensor in known.items():
                    like = param if tensor.shape == other.shape else tensor
                    state[key] = torch.zeros_like(like, dtype=tensor.dtype, device=tensor.device)
                self._optimizer.state[param].update(state)
        return [state[key] for state in states for key in sorted(state)]

    def state(self) -> dict[str, Tensor]:
        """The outer momentum, the same on every rank.

        After `make_replicas_equal` the model contains everything else.
        """
        states = [self._outer.state[agreed].get("momentum_buffer") for agreed in self._agreed]
        return {
            f"outer momentum/{number}": momentum
            for number, momentum in enumerate(states)
            if momentum is not None
        }

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        self._steps = 0
        self._is_settled = True
        for number, (agreed, param) in enumerate(zip(self._agreed, _trained(model), strict=True)):
            agreed.copy_(param.detach())
            momentum = state.get(f"outer momentum/{number}")
            if momentum is not None and self.options.outer_momentum:
                self._outer.state[agreed]["momentum_buffer"] = momentum.to(param, copy=True)


def _trained(model: nn.Module) -> list[Tensor]:
    return [param for param in model.parameters() if param.requires_grad]


def _numbers(state: dict[str, object]) -> dict[str, Tensor]:
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    return {key: value for key, value in tensors.items() if value.is_floating_point()}


build = LocalSgd
