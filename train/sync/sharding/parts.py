"""An optimizer steps this rank's parts of the parameters, and keeps state of these alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from muster.errors import UsageError

from ..base import GradSync, SyncOptions, must_clip
from ..ranks import Ranks
from .shares import Share

# What these do to a value depends on its own gradients alone.
BY_VALUE = (
    optim.Adam, optim.AdamW, optim.SGD, optim.Adadelta, optim.RMSprop, optim.Adamax, optim.NAdam,
    optim.RAdam,
)  # fmt: skip
NUMBERS = ("step", "mu_product")  # what they keep once for a parameter


class PartedSync(GradSync):
    """A mode that leaves a part of each parameter, its gradient and its state to each rank.

    A rank has a part of each, be it without a value: so all optimizers keep state by the same keys.
    """

    in_parts = True

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.shares: dict[nn.Parameter, Share] = {}  # by the parameters that `wrap` was given

    def part_of(self, param: nn.Parameter) -> nn.Parameter:
        """What is stepped instead of `param`, one of those of the wrapped model."""
        return self.shares[param].part

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """Have `optimizer` step the parts of its parameters.

        Raises:
            UsageError: it is one that looks at a parameter as a whole.
        """
        kind, mode = type(optimizer).__name__, type(self).__name__.lower()
        if not isinstance(optimizer, BY_VALUE):
            raise UsageError(
                f"sync mode {mode} leaves a part of every parameter to each rank, but {kind} is "
                f"not known to treat each value for itself; use all_reduce, or one of "
                f"{', '.join(one.__name__ for one in BY_VALUE)}"
            )
        if optimizer.state:
            raise UsageError(f"sync mode {mode}: {kind} has stepped already; give it a new one")
        for group in optimizer.param_groups:
            group["params"] = [self.part_of(param) for param in group["params"]]
        return optimizer

    @torch.no_grad()
    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        """The squares of the ranks' norms add up to that of the whole: an all_reduce of one."""
        parts = [share.part for share in self.shares.values()]
        gradients = [part.grad for part in parts if part.grad is not None]
        own = nn.utils.get_total_norm(gradients).to(parts[0].device)
        square = self.ranks.all_reduce(own.double().square(), dist.ReduceOp.SUM)
        norm = square.sqrt().to(own.dtype)
        if must_clip(norm, limit):
            nn.utils.clip_grads_with_norm_(parts, limit, norm)
        return norm

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        for param, share in self.shares.items():
            state = optimizer.state.get(share.part, {})
            cut = sorted(key for key in state if key not in NUMBERS and state[key] is not None)
            yield param, {**state, **{key: share.whole(state[key]) for key in cut}}

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        share = self.shares[param]
        optimizer.state[share.part] = {
            key: value if key in NUMBERS else share.part_of(value).clone()
            for key, value in state.items()
        }
