"""Each parameter is cut into as many equal parts as there are ranks; rank r has the r-th.

    parameter (5, 3), 15 values, on 4 ranks   [0..3] [4..7] [8..11] [12..14]

Values are counted in the order in which they lie in memory. A part has ceil(n / ranks) of them, the
last parts fewer, or none. A bucket of gradients lies so that what goes to a rank is one row of it:

    flat (ranks, row)     row = the parts of that rank of all the bucket's parameters, one after
                          the other; what a part lacks to its full length is zero
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from ..ranks import Ranks


class Share:
    """The part of one parameter whose optimizer state this rank keeps: `part` (values,)."""

    def __init__(self, param: nn.Parameter, ranks: Ranks, full: int, part: Tensor) -> None:
        """`full`: values of a rank's part; the last ones may have fewer. `param` is for its form.

        `part` has the memory of what is trained: an optimizer's step of it is the parameter's.
        """
        self.param, self.world_size, self.size = param, ranks.world_size, param.numel()
        self.full, self.own = full, _own(self.size, full, ranks.rank)
        self.part = nn.Parameter(part, requires_grad=param.requires_grad)

    def part_of(self, tensor: Tensor) -> Tensor:
        """This rank's values (values,) of a tensor of the parameter's shape."""
        return in_memory(tensor, self.param)[self.own]

    def row(self, part: Tensor) -> Tensor:
        """`part` (values,) in its full length, the rest zeros: (full,)."""
        row = part.new_zeros(self.full)
        row[: len(part)] = part
        return row

    def whole(self, rows: Tensor) -> Tensor:
        """The rows (ranks, full) of all ranks, put together in the parameter's shape."""
        values = rows.reshape(-1)[: self.size]
        return values.as_strided(self.param.size(), self.param.stride())


class ShareInPlace(Share):
    """A share of a parameter that is whole on every rank: it lies in the parameter's own memory."""

    def __init__(self, param: nn.Parameter, ranks: Ranks) -> None:
        if param.stride() != torch.empty_like(param, device="meta").stride():
            # It lies in the memory of something larger, with gaps: give it a memory of its own.
            param.data = param.data.clone(memory_format=torch.contiguous_format)
        full = -(-param.numel() // ranks.world_size)
        self.values = in_memory(param.detach(), param)  # (size,)
        super().__init__(param, ranks, full, self.values[_own(len(self.values), full, ranks.rank)])

    @property
    def is_even(self) -> bool:
        """Whether all parts are of the same length."""
        return self.size == self.full * self.world_size

    def pairs(self, tensor: Tensor, columns: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The parts of `columns` (ranks, full), and those of `tensor` that go there, or come.

        `tensor` has the parameter's shape; its parts are views if it lies in memory as that does.
        """
        values = in_memory(tensor, self.param)
        if self.is_even:
            return [columns], [values.view(columns.shape)]
        parts = values.split(self.full) if self.full else []
        return [row[: len(one)] for row, one in zip(columns, parts, strict=False)], list(parts)


class SharedBucket:
    """A bucket of which each rank gets the mean of its own row: `flat` is (ranks, row).

    Afterwards the parameters have no gradient, but this rank's parts of them have.
    """

    flat: Tensor  # from when the gradients are taken until they have been sent
    mean: Tensor  # (row,): once the collective is done

    def __init__(self, params: Sequence[nn.Parameter], shares: Sequence[ShareInPlace]) -> None:
        self.params, self._shares = params, shares
        self.missing = set(params)  # those whose gradients the backward pass has not made yet
        self.had: list[bool] = []  # of each parameter: whether this rank had a gradient of it
        ends = list(accumulate(share.full for share in shares))
        self._columns = [slice(end - one.full, end) for end, one in zip(ends, shares, strict=True)]
        self._row = ends[-1]
        self.nbytes = params[0].itemsize * self._row * shares[0].world_size

    @torch.no_grad()
    def take(self) -> None:
        found = [param.grad for param in self.params]
        self.had = [gradient is not None for gradient in found]
        world_size, first = self._shares[0].world_size, found[0]
        if len(found) == 1 and first is not None and self._shares[0].is_even and self._stays(first):
            self.flat = first.as_strided((world_size, self._row), (self._row, 1))
        else:
            self.flat = self.params[0].new_zeros(world_size, self._row)
            places, values = list[Tensor](), list[Tensor]()
            for share, columns, gradient in zip(self._shares, self._columns, found, strict=True):
                if gradient is not None:
                    into, out_of = share.pairs(gradient, self.flat[:, columns])
                    places += into
                    values += out_of
            if places:
                torch._foreach_copy_(places, values)
        for param in self.params:
            param.grad = None

    def _stays(self, gradient: Tensor) -> bool:
        """Whether a gradient alone in its bucket can be sent from where it is."""
        as_param = torch.empty_like(self.params[0], device="meta").stride()
        return not gradient.is_sparse and gradient.stride() == as_param and _is_own(gradient)

    def let_go(self) -> None:
        """What was sent is no longer needed."""
        del self.flat

    def give_back(self, wanted: Sequence[bool]) -> None:
        for share, columns, is_wanted in zip(self._shares, self._columns, wanted, strict=True):
            share.part.grad = self._mean_of(share, columns) if is_wanted else None
        self.missing = set(self.params)
        del self.mean

    def _mean_of(self, share: Share, columns: slice) -> Tensor:
        return self.mean[columns][: len(share.part)]


def _is_own(gradient: Tensor) -> bool:
    """Whether its memory is no other's: autograd may let two gradients share it."""
    storage = gradient.untyped_storage()
    holders = torch._C._storage_Use_Count(storage._cdata)
    return holders == 2  # the gradient, and `storage` itself


def in_memory(tensor: Tensor, param: Tensor) -> Tensor:
    """All values of `tensor` (of the shape of `param`), in the order in which `param`'s lie: (n,).

    A view, if they lie so already.
    """
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.stride() != param.stride():
        tensor = torch.empty_like(param, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def _own(size: int, full: int, rank: int) -> slice:
    begin = min(rank * full, size)
    return slice(begin, min(begin + full, size))
