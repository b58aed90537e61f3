"""What `fully_shard` sends: the same bytes as any ring, and account of them."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ..ranks import all_gather_single, reduce_scatter_single

Note = Callable[[str, Tensor], None]


class Transport:
    """What torch asks of a collective of its own: memory, and to be called."""

    def __init__(self, note: Note) -> None:
        self._note = note

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class Gather(Transport):
    """Each rank's part of some parameters (n,) becomes that of all: (ranks * n,)."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool
    ) -> dist.Work | None:
        self._note("all_gather", input_tensor)
        work: dist.Work | None = all_gather_single(
            output_tensor, input_tensor, group=group, async_op=async_op
        )
        return work


class ReduceScatter(Transport):
    """Gradients (ranks * n,) become the mean, or the sum, of this rank's part of them: (n,).

    gloo's own reduce_scatter sends twice as much, for it is an all_reduce: so each rank sends every
    other its part.
    """

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
    ) -> None:
        if input_tensor.is_cuda:
            self._note("reduce_scatter", input_tensor)
            reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)
            return
        self._note("all_to_all", input_tensor)
        came = torch.empty_like(input_tensor)
        dist.all_to_all_single(came, input_tensor, group=group)
        reduced = torch.mean if op == dist.ReduceOp.AVG else torch.sum
        reduced(came.view(group.size(), len(output_tensor)), dim=0, out=output_tensor)
