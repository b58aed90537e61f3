"""Each rank has a part of every parameter; its optimizer updates that part.

zero1 divides parameters with `Shard`. Values are counted in their order in memory, one parameter
after the other. Each rank has `row` values; the last ranks may have fewer, or none:

    a (5,), b (7,) on 4 ranks, row 3     aaa | aab | bbb | bbb
    rank 1 has a[3:5] and b[0:1]
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from muster.errors import UsageError

from ..base import GradSync
from ..ranks import Ranks

# Optimizers whose update of a value depends only on that value's gradients.
BY_VALUE = (
    optim.Adam, optim.AdamW, optim.SGD, optim.Adadelta, optim.RMSprop, optim.Adamax, optim.NAdam,
    optim.RAdam,
)  # fmt: skip
NUMBERS = ("step", "mu_product")  # states that they store once per parameter


class Shard:
    """The part of one parameter whose optimizer state this rank holds: `part` (values,)."""

    def __init__(self, param: nn.Parameter, ranks: Ranks, row: int, begin: int = 0) -> None:
        """`begin` is the number of values before those of `param`.

        `part` shares its memory with `param`, so an optimizer's step on `part` changes `param`.
        """
        self._ranks = ranks
        self.layout = torch.empty_like(param, device="meta")
        size = param.numel()
        ends = [min(max(end * row - begin, 0), size) for end in range(ranks.world_size + 1)]
        self._lengths = [after - before for before, after in pairwise(ends)]  # for each rank
        self.range = slice(ends[ranks.rank], ends[ranks.rank + 1])
        values = self.part_of(param.detach())
        self.part = nn.Parameter(values, requires_grad=param.requires_grad)

    def part_of(self, tensor: Tensor) -> Tensor:
        """Return this rank's values (values,) of a tensor with the parameter's shape."""
        return in_memory_order(tensor, self.layout)[self.range]

    def gathered(self, part: Tensor) -> Tensor:
        """Gather the `part` (values,) of every rank into the parameter's shape.

        Every rank must call it: one all_gather of the largest part.
        """
        row = part.new_zeros(max(self._lengths))
        row[: len(part)] = part.detach()
        rows = self._ranks.all_gather(row)
        parts = [values[:length] for values, length in zip(rows, self._lengths, strict=True)]
        return torch.cat(parts).as_strided(self.layout.size(), self.layout.stride())


def in_memory_order(tensor: Tensor, layout: Tensor) -> Tensor:
    """Return all values of `tensor` in the memory order of `layout`, which has its shape: (n,).

    The result is a view if they are already in that order.
    """
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.stride() != layout.stride():
        tensor = torch.empty_like(layout, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


class ShardedSync(GradSync):
    """A mode that gives each rank a part of each parameter, its gradient and its state.

    Each rank has a part of every parameter, even an empty one, so that all optimizers have the same
    keys.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        self._device = next(model.parameters()).device
        return super().wrap(model)

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """Return `optimizer`, if it can update parts of parameters.

        Raises:
            UsageError: the optimizer needs whole parameters.
        """
        if not isinstance(optimizer, BY_VALUE):
            raise UsageError(
                f"sync mode {type(self).__name__.lower()} splits every parameter among the "
                f"ranks, but {type(optimizer).__name__} may need whole parameters"
                "\ntip: use all_reduce, or one of "
                f"{', '.join(kind.__name__ for kind in BY_VALUE)}"
            )
        return optimizer

    @torch.no_grad()
    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the norm over all ranks' parts: one all_reduce of a number, the sum of squares."""
        local = super().norm(gradients).to(self._device)
        return self.ranks.all_reduce(local.double().square()).sqrt().to(local.dtype)
