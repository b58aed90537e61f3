"""Parameters side by side, of whose values each rank has a row: `flat` is (ranks, row).

Their gradients go to the ranks whose parts they are, while further gradients are computed; after
the optimizer's step all ranks get all parts. What `flat` lacks to even rows is zero.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranks import Ranks, all_gather_single
from .parts import Share, in_memory


class Bucket:
    """Afterwards the parameters have no gradient, but this rank's parts of them have."""

    had: Sequence[bool]  # of each parameter: whether this rank had a gradient of it
    work: dist.Work  # what is being sent
    _flat: Tensor  # as long as it is

    def __init__(
        self, params: Sequence[nn.Parameter], ranks: Ranks, group: dist.ProcessGroup | None = None
    ) -> None:
        """`group`: what it is sent through; other than that of `ranks`."""
        self.params, self._ranks, self._group = params, ranks, group
        self.missing = set(params)  # those whose gradients the backward pass has not made yet
        for param in params:
            if param.stride() != torch.empty_like(param, device="meta").stride():
                # It lies in the memory of something larger, with gaps: give it one of its own.
                param.data = param.data.clone(memory_format=torch.contiguous_format)
        self._values = [in_memory(param.detach(), param) for param in params]  # each (n,)
        ends = list(accumulate(map(len, self._values)))
        self._size, self._row = ends[-1], -(-ends[-1] // ranks.world_size)
        self._is_even = len(params) == 1 and self._size == self._row * ranks.world_size
        self.shares = [
            Share(param, ranks, self._row, end - len(values))
            for param, values, end in zip(params, self._values, ends, strict=True)
        ]
        self.nbytes = self._row * ranks.world_size * params[0].itemsize

    def _rows(self, values: Sequence[Tensor]) -> Tensor:
        """A bucket for `values`; a single one that divides evenly is a bucket where it lies."""
        form = self._ranks.world_size, self._row
        return values[0].view(form) if self._is_even else values[0].new_zeros(form)

    @torch.no_grad()
    def reduce(self) -> Tensor:
        """Begin to send every rank its row of the gradients: what this rank sends."""
        found = [param.grad for param in self.params]
        self.had = [gradient is not None for gradient in found]
        values = [
            torch.zeros_like(own) if gradient is None else in_memory(gradient, share.form)
            for own, gradient, share in zip(self._values, found, self.shares, strict=True)
        ]
        self._flat = self._rows(values)
        if not self._is_even:
            torch.cat(values, out=self._flat.view(-1)[: self._size])
        for param in self.params:
            param.grad = None
        self._ranks.ledger.gradient("all_to_all", self._flat)
        self._came = torch.empty_like(self._flat)  # this rank's row, of each rank
        # gloo's own reduce_scatter sends twice as much: it is an all_reduce.
        self.work = dist.all_to_all_single(
            self._came.view(-1), self._flat.view(-1), group=self._group, async_op=True
        )
        return self._flat

    @torch.no_grad()
    def wait(self) -> None:
        """Until the gradients have come: what was sent is freed, and what came is the mean."""
        self.work.wait()
        self._mean = self._came.mean(dim=0)
        del self._flat, self._came

    def give(self, wanted: Sequence[bool]) -> None:
        """The parts get their gradients, each if it is `wanted`."""
        lengths = [len(share.part) for share in self.shares]
        of_each = self._mean[: sum(lengths)].split(lengths)
        for share, mean, is_wanted in zip(self.shares, of_each, wanted, strict=True):
            share.part.grad = mean if is_wanted else None
        self.missing = set(self.params)
        del self._mean

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Begin to tell all ranks what the optimizer has made of the parts: this rank's row."""
        parts = [share.part.detach() for share in self.shares]
        self._flat = self._rows(self._values)  # if even, the parts are where they belong
        own = self._flat[self._ranks.rank]
        if not self._is_even:
            torch.cat(parts, out=own[: sum(map(len, parts))])
        self._ranks.ledger.gradient("all_gather", own)
        self.work = all_gather_single(self._flat.view(-1), own, group=self._group, async_op=True)
        return own

    @torch.no_grad()
    def finish(self) -> None:
        """Afterwards the parameters are whole."""
        self.work.wait()
        if not self._is_even:
            received = self._flat.view(-1)[: self._size].split([len(one) for one in self._values])
            torch._foreach_copy_(self._values, list(received))
        del self._flat
