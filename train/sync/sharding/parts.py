"""Each rank has a part of every parameter, its share; its optimizer updates that part.

Layers that a model repeats are gathered one by one, each when it is its turn.

Values are counted in the order in which they lie in memory. Parameters lie one after the other, or
one by itself, and `row` values of that are each rank's; the last ones may have fewer, or none:

    a (5,), b (7,) on 4 ranks, row 3     aaa | aab | bbb | bbb
    of a, rank 1 has a[3:5]; of b, rank 1 has b[0:1]
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from muster.errors import UsageError

from ..base import GradSync, SyncOptions
from ..ranks import Ranks

# Their update of a value depends on that value's gradients alone.
BY_VALUE = (
    optim.Adam, optim.AdamW, optim.SGD, optim.Adadelta, optim.RMSprop, optim.Adamax, optim.NAdam,
    optim.RAdam,
)  # fmt: skip
NUMBERS = ("step", "mu_product")  # states that they store once per parameter


class Share:
    """The part of one parameter whose optimizer state this rank holds: `part` (values,)."""

    def __init__(
        self,
        param: nn.Parameter,
        ranks: Ranks,
        row: int,
        begin: int = 0,
        part: Tensor | None = None,
    ) -> None:
        """`begin` counts values before those of `param`; `part` is None if `param` is whole here.

        `part` shares its memory with the trained parameter, so an optimizer's step on it changes
        that.
        """
        self._ranks = ranks
        self.form = torch.empty_like(param, device="meta")
        size = param.numel()
        ends = [min(max(end * row - begin, 0), size) for end in range(ranks.world_size + 1)]
        self._lengths = [after - before for before, after in pairwise(ends)]  # for each rank
        self.own = slice(ends[ranks.rank], ends[ranks.rank + 1])
        values = self.part_of(param.detach()) if part is None else part
        self.part = nn.Parameter(values, requires_grad=param.requires_grad)

    def part_of(self, tensor: Tensor) -> Tensor:
        """This rank's values (values,) of a tensor of the parameter's shape."""
        return in_memory(tensor, self.form)[self.own]

    def whole(self, part: Tensor) -> Tensor:
        """Gather the `part` (values,) of each rank into the parameter's shape. Collective."""
        row = part.new_zeros(max(self._lengths))
        row[: len(part)] = part.detach()
        rows = self._ranks.all_gather(row)
        parts = [one[:length] for one, length in zip(rows, self._lengths, strict=True)]
        return torch.cat(parts).as_strided(self.form.size(), self.form.stride())


def in_memory(tensor: Tensor, form: Tensor) -> Tensor:
    """All values of `tensor` (of the shape of `form`), in the memory order of `form`: (n,).

    It is a view if they are already in that order.
    """
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.stride() != form.stride():
        tensor = torch.empty_like(form, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


class PartedSync(GradSync):
    """A mode that gives each rank a part of each parameter, its gradient and its state.

    A rank has a part of each parameter, even without a value, so that all optimizers have the same
    keys.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.shares: dict[nn.Parameter, Share] = {}  # by the given model's parameters

    def part_of(self, param: nn.Parameter) -> nn.Parameter:
        """What the optimizer updates in place of `param`, a parameter of the wrapped model."""
        return self.shares[param].part

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """Make `optimizer` update the parts of its parameters.

        Raises:
            UsageError: the optimizer needs whole parameters.
        """
        if not isinstance(optimizer, BY_VALUE):
            raise UsageError(
                f"sync mode {type(self).__name__.lower()} leaves a part of every parameter to each "
                f"rank, but {type(optimizer).__name__} is not known to treat each value for "
                f"itself; use all_reduce, or one of {', '.join(one.__name__ for one in BY_VALUE)}"
            )
        for group in optimizer.param_groups:
            group["params"] = [self.part_of(param) for param in group["params"]]
        return optimizer

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        return super().clip([share.part for share in self.shares.values()], limit)

    @torch.no_grad()
    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Add up the squares of the ranks' norms: an all_reduce of one number."""
        own = super().norm(gradients).to(next(iter(self.shares)).device)
        return self.ranks.all_reduce(own.double().square()).sqrt().to(own.dtype)

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


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """The repeated layers of `model` that can be gathered one at a time.

    Layers that share a parameter with a module outside of them are left out: only one unit may own
    a parameter.
    """
    holders = _holders(model)
    return [
        layer
        for layer in repeated(model)
        if (own := _holders(layer)) and all(holders[param] == own[param] for param in own)
    ]


def repeated(module: nn.Module) -> list[nn.Module]:
    """The members of every outermost list of several modules of one class."""
    if isinstance(module, nn.ModuleList) and len(module) > 1 and len(set(map(type, module))) == 1:
        return list(module)
    return [layer for child in module.children() for layer in repeated(child)]


def _holders(module: nn.Module) -> Counter[nn.Parameter]:
    """The number of names of each parameter."""
    return Counter(param for _, param in module.named_parameters(remove_duplicate=False))
