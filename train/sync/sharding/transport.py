"""What `fully_shard` sends: the same bytes as any ring, and account of them."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..ranks import CollectiveLedger, all_gather_single, reduce_scatter_single


class Gather:
    """Each rank's part of some parameters (n,) becomes that of all: (ranks * n,)."""

    def __init__(self, ledger: CollectiveLedger) -> None:
        self._ledger = ledger

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> Any:
        self._ledger.gradient("all_gather", input_tensor)
        return all_gather_single(output_tensor, input_tensor, **how)


class ReduceScatter(Gather):
    """Gradients (ranks * n,) become the mean, or the sum, of this rank's part of them: (n,).

    gloo's own reduce_scatter sends twice as much, for it is an all_reduce: so each rank sends every
    other its part.
    """

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **how: Any) -> Any:
        if input_tensor.is_cuda:
            self._ledger.gradient("reduce_scatter", input_tensor)
            reduce_scatter_single(output_tensor, input_tensor, **how)
            return
        self._ledger.gradient("all_to_all", input_tensor)
        came = torch.empty_like(input_tensor)
        dist.all_to_all_single(came, input_tensor, group=how["group"])
        reduced = torch.mean if how["op"] == dist.ReduceOp.AVG else torch.sum
        reduced(came.view(-1, len(output_tensor)), dim=0, out=output_tensor)
