"""An optimizer steps this rank's parts of the parameters, and keeps state of these alone."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from muster.errors import UsageError

from ..base import CLIP_EPSILON, must_clip
from ..ranks import Ranks
from .shares import Share

# What these do to a value depends on its own gradients alone.
BY_VALUE = (
    optim.Adam, optim.AdamW, optim.SGD, optim.Adadelta, optim.RMSprop, optim.Adamax, optim.NAdam,
    optim.RAdam,
)  # fmt: skip
NUMBERS = ("step", "mu_product")  # what they keep once for a parameter


class Parts:
    """This rank's share of every parameter that is trained.

    A rank has a part of each, be it without a value: so all optimizers keep state by the same keys.
    """

    def __init__(self, ranks: Ranks, shares: Mapping[nn.Parameter, Share]) -> None:
        self._ranks, self._shares = ranks, shares

    def give_to(
        self, optimizer: Optimizer, shares: Mapping[nn.Parameter, Share], mode: str
    ) -> None:
        """Have `optimizer` step the parts of its parameters, which are the keys of `shares`.

        Raises:
            UsageError: it is one that looks at a parameter as a whole.
        """
        kind = type(optimizer).__name__
        if not isinstance(optimizer, BY_VALUE):
            raise UsageError(
                f"sync mode {mode} leaves a part of every parameter to each rank, but {kind} is "
                f"not known to treat each value for itself; use all_reduce, or one of "
                f"{', '.join(one.__name__ for one in BY_VALUE)}"
            )
        if optimizer.state:
            raise UsageError(f"sync mode {mode}: {kind} has stepped already; give it a new one")
        for group in optimizer.param_groups:
            group["params"] = [shares[param].part for param in group["params"]]

    @torch.no_grad()
    def clip(self, limit: float, device: torch.device) -> Tensor:
        """Scale the gradients down to a norm of `limit` over all ranks (0: never); that before.

        The squares of the ranks' norms add up to that of the whole: one all_reduce of a float64.
        """
        found = [share.part.grad for share in self._shares.values()]
        gradients = [gradient for gradient in found if gradient is not None]
        own = nn.utils.get_total_norm(gradients).to(device)
        square = self._ranks.all_reduce(own.double().square(), dist.ReduceOp.SUM)
        norm = square.sqrt().to(own.dtype)
        if must_clip(norm, limit) and gradients:
            torch._foreach_mul_(gradients, (limit / (norm + CLIP_EPSILON)).clamp(max=1.0))
        return norm

    def whole(self, share: Share, part: Tensor) -> Tensor:
        """What each rank has its `part` (values,) of, in the parameter's shape. Collective."""
        return share.whole(self._ranks.all_gather(share.row(part.detach())))

    def state(self, optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        """What the optimizers of all ranks keep of each parameter, put together. Collective."""
        for param, share in self._shares.items():
            state = optimizer.state.get(share.part, {})
            yield (
                param,
                {
                    key: value if key in NUMBERS or value is None else self.whole(share, value)
                    for key, value in sorted(state.items())
                },
            )

    def set_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: Mapping[str, Any]
    ) -> None:
        """Have `optimizer` keep this rank's part of that."""
        share = self._shares[param]
        optimizer.state[share.part] = {
            key: value if key in NUMBERS else share.part_of(value).clone()
            for key, value in state.items()
        }
