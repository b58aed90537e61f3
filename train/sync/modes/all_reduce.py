"""Average gradients with one all_reduce per bucket, while further gradients are computed."""

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..ddp.hooks import BucketHook, summed
from ..ddp.torch_ddp import DdpSync
from ..ranks import Ranks


class AllReduceHook(BucketHook):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes (ring of gloo and nccl)."""

    is_as_ddp = True

    def start(self, flat: Tensor) -> Future[Tensor]:
        # divided first, as DDP does, so that the sum stays in the range of a small type
        return summed(flat.div_(self.ranks.world_size), self.ranks)


class AllReduce(DdpSync):
    """The trainer's mode; its loop after the backward pass calls `average`."""

    hook_class = AllReduceHook

    @staticmethod
    def average(tensor: Tensor, ranks: Ranks) -> None:
        ranks.ledger.gradient("all_reduce", tensor)
        tensor /= ranks.world_size
        dist.all_reduce(tensor, group=ranks.group)


build = AllReduce
