"""Parameters laid side by side, with their values divided among the ranks: `flat` is (ranks, row).

Each rank owns one row. The gradients of a row go to its owner while further gradients are computed.
After the optimizer's step all ranks get all rows. `flat` is padded with zeros to full rows.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranks import Ranks, all_gather_single, backend_of, reduce_scatter_single, waits
from .parts import Shard, in_memory_order


class ShardedBucket:
    """Parameters whose gradients are reduced together, and whose values are gathered together.

    After `set_gradients`, this rank's shards have gradients and the parameters have none.
    """

    had_gradient: Sequence[bool]  # on this rank, for each parameter
    work: dist.Work  # the running collective
    _flat: Tensor  # only while something is sent

    def __init__(
        self, params: Sequence[nn.Parameter], ranks: Ranks, group: dist.ProcessGroup | None = None
    ) -> None:
        """`group` is the group to send through; it differs from the group of `ranks`."""
        self.params, self._ranks, self._group = params, ranks, group
        self._on_nccl = backend_of(params[0].device, group) == "nccl"
        self.missing = set(params)  # parameters whose gradients are not ready yet
        for param in params:
            if param.stride() != torch.empty_like(param, device="meta").stride():
                # It is a view of a larger tensor, with gaps: give it its own memory.
                param.data = param.data.clone(memory_format=torch.contiguous_format)
        self._values = [in_memory_order(param.detach(), param) for param in params]  # each (n,)
        ends = list(accumulate(map(len, self._values)))
        self._size = ends[-1]
        self._row = -(-self._size // ranks.world_size)
        self._is_even = len(params) == 1 and self._size == self._row * ranks.world_size
        self.shards = [
            Shard(param, ranks, self._row, end - len(values))
            for param, values, end in zip(params, self._values, ends, strict=True)
        ]
        self.nbytes = self._row * ranks.world_size * params[0].itemsize

    def _rows(self, values: Sequence[Tensor]) -> Tensor:
        """Return (ranks, row) memory for `values`: in place for a tensor that divides evenly."""
        shape = self._ranks.world_size, self._row
        return values[0].view(shape) if self._is_even else values[0].new_zeros(shape)

    @torch.no_grad()
    def reduce(self) -> Tensor:
        """Begin to send every rank its row of the gradients; return what this rank sends.

        Its shape is (ranks, row). This is one all_to_all (on NCCL one reduce_scatter), which `wait`
        ends.
        """
        gradients = [param.grad for param in self.params]
        self.had_gradient = [gradient is not None for gradient in gradients]
        values = [
            torch.zeros_like(data) if gradient is None else in_memory_order(gradient, shard.layout)
            for data, gradient, shard in zip(self._values, gradients, self.shards, strict=True)
        ]
        self._flat = self._rows(values)
        if not self._is_even:
            torch.cat(values, out=self._flat.view(-1)[: self._size])
        for param in self.params:
            param.grad = None
        sent = self._flat.view(-1)
        if self._on_nccl:
            self._ranks.ledger.gradient("reduce_scatter", self._flat)
            self._received = torch.empty_like(self._flat[:1])  # the sum of this rank's rows
            received = self._received.view(-1)
            work = reduce_scatter_single(received, sent, group=self._group, async_op=True)
        else:  # gloo's reduce_scatter is an all_reduce and sends twice as much
            self._ranks.ledger.gradient("all_to_all", self._flat)
            self._received = torch.empty_like(self._flat)  # this rank's row, from each rank
            received = self._received.view(-1)
            work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
        self.work = work
        return self._flat

    @torch.no_grad()
    def wait(self) -> None:
        """Wait for the gradients of all ranks; average them and free the sent ones."""
        waits.during(self.work.wait)
        if self._on_nccl:
            self._mean = self._received[0].div_(self._ranks.world_size)
        else:
            self._mean = self._received.mean(dim=0)
        del self._flat, self._received

    def set_gradients(self, used: Sequence[bool]) -> None:
        """Give each shard its mean gradient; None if no rank has `used` its parameter."""
        lengths = [len(shard.part) for shard in self.shards]
        means = self._mean[: sum(lengths)].split(lengths)
        for shard, mean, is_used in zip(self.shards, means, used, strict=True):
            shard.part.grad = mean if is_used else None
        self.missing = set(self.params)
        del self._mean

    @torch.no_grad()
    def gather(self) -> Tensor:
        """Begin to send this rank's updated row to all ranks; return that row.

        This is one all_gather, which `finish` ends.
        """
        parts = [shard.part.detach() for shard in self.shards]
        self._flat = self._rows(self._values)  # if even, the parts are in place
        row = self._flat[self._ranks.rank]
        if not self._is_even:
            torch.cat(parts, out=row[: sum(map(len, parts))])
        self._ranks.ledger.gradient("all_gather", row)
        self.work = all_gather_single(self._flat.view(-1), row, group=self._group, async_op=True)
        return row

    @torch.no_grad()
    def finish(self) -> None:
        """Wait until the parameters are whole."""
        waits.during(self.work.wait)
        if not self._is_even:
            lengths = [len(values) for values in self._values]
            received = self._flat.view(-1)[: self._size].split(lengths)
            torch._foreach_copy_(self._values, list(received))
        del self._flat
