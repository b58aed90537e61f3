"""Parameters side by side, of whose values each rank has a row: `flat` is (ranks, row).

Their gradients go to the ranks that own the parts, while further gradients are computed. After the
optimizer's step all ranks get all parts. `flat` is padded with zeros to full rows.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranks import Ranks, all_gather_single, waits
from .parts import Share, in_memory


class Bucket:
    """A bucket; after `give`, this rank's parts have gradients and the parameters have none."""

    had: Sequence[bool]  # for each parameter: whether this rank had a gradient
    work: dist.Work  # the running collective
    _flat: Tensor  # only while something is sent

    def __init__(
        self, params: Sequence[nn.Parameter], ranks: Ranks, group: dist.ProcessGroup | None = None
    ) -> None:
        """`group` is the group to send through; it differs from that of `ranks`."""
        self.params, self._ranks, self._group = params, ranks, group
        self.missing = set(params)  # those whose gradients are not ready yet
        for param in params:
            if param.stride() != torch.empty_like(param, device="meta").stride():
                # It is a view with gaps of a larger tensor: give it its own memory.
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
        """A bucket for `values`; a single tensor that divides evenly is used in place."""
        form = self._ranks.world_size, self._row
        return values[0].view(form) if self._is_even else values[0].new_zeros(form)

    @torch.no_grad()
    def reduce(self) -> Tensor:
        """Begin to send every rank its row of the gradients; return what this rank sends."""
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
        self._came = torch.empty_like(self._flat)  # this rank's row, from each rank
        # gloo's reduce_scatter is an all_reduce and sends twice as much.
        self.work = dist.all_to_all_single(
            self._came.view(-1), self._flat.view(-1), group=self._group, async_op=True
        )
        return self._flat

    @torch.no_grad()
    def wait(self) -> None:
        """Wait for the gradients: free what was sent, and average what was received."""
        waits.during(self.work.wait)
        self._mean = self._came.mean(dim=0)
        del self._flat, self._came

    def give(self, wanted: Sequence[bool]) -> None:
        """Give the parts their gradients, each if it is `wanted`."""
        lengths = [len(share.part) for share in self.shares]
        of_each = self._mean[: sum(lengths)].split(lengths)
        for share, mean, is_wanted in zip(self.shares, of_each, wanted, strict=True):
            share.part.grad = mean if is_wanted else None
        self.missing = set(self.params)
        del self._mean

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Begin to send this rank's updated row to all ranks; return that row."""
        parts = [share.part.detach() for share in self.shares]
        self._flat = self._rows(self._values)  # if even, the parts are in place
        own = self._flat[self._ranks.rank]
        if not self._is_even:
            torch.cat(parts, out=own[: sum(map(len, parts))])
        self._ranks.ledger.gradient("all_gather", own)
        self.work = all_gather_single(self._flat.view(-1), own, group=self._group, async_op=True)
        return own

    @torch.no_grad()
    def finish(self) -> None:
        """Wait until the parameters are whole."""
        waits.during(self.work.wait)
        if not self._is_even:
            received = self._flat.view(-1)[: self._size].split([len(one) for one in self._values])
            torch._foreach_copy_(self._values, list(received))
        del self._flat
