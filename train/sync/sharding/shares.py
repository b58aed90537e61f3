"""Each rank keeps a part of every parameter: its share.

Values are counted in the order in which they lie in memory. Parameters lie one after the other, or
one by itself, and `row` values of that are each rank's; the last ones may have fewer, or none:

    a (5,), b (7,) on 4 ranks, row 3     aaa | aab | bbb | bbb
    of a, rank 1 has a[3:5]; of b, rank 1 has b[0:1]
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from ..ranks import Ranks


class Share:
    """The part of one parameter whose optimizer state this rank keeps: `part` (values,)."""

    def __init__(
        self,
        param: nn.Parameter,
        ranks: Ranks,
        row: int,
        begin: int = 0,
        part: Tensor | None = None,
    ) -> None:
        """`begin`: values that lie before those of `param`; `part`: None, if `param` is whole here.

        `part` has the memory of what is trained: an optimizer's step of it is the parameter's.
        """
        self._ranks = ranks
        self.form = torch.empty_like(param, device="meta")
        size = param.numel()
        ends = [min(max(end * row - begin, 0), size) for end in range(ranks.world_size + 1)]
        self._lengths = [after - before for before, after in pairwise(ends)]  # of each rank
        self.own = slice(ends[ranks.rank], ends[ranks.rank + 1])
        values = self.part_of(param.detach()) if part is None else part
        self.part = nn.Parameter(values, requires_grad=param.requires_grad)

    def part_of(self, tensor: Tensor) -> Tensor:
        """This rank's values (values,) of a tensor of the parameter's shape."""
        return in_memory(tensor, self.form)[self.own]

    def whole(self, part: Tensor) -> Tensor:
        """What each rank has its `part` (values,) of, in the parameter's shape. Collective."""
        row = part.new_zeros(max(self._lengths))
        row[: len(part)] = part.detach()
        rows = self._ranks.all_gather(row)
        parts = [one[:length] for one, length in zip(rows, self._lengths, strict=True)]
        return torch.cat(parts).as_strided(self.form.size(), self.form.stride())


def in_memory(tensor: Tensor, form: Tensor) -> Tensor:
    """All values of `tensor` (of the shape of `form`), in the order in which `form`'s lie: (n,).

    A view, if they lie so already.
    """
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.stride() != form.stride():
        tensor = torch.empty_like(form, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
