"""Average gradients with one all_reduce per bucket, while further gradients are computed."""

from datetime import timedelta

import torch.distributed as dist
from torch import Tensor, nn

from train.bucket_sync import BucketSync, Pending


class AllReduce(BucketSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes (gloo's and nccl's ring)."""

    overlaps = True
    default_mb = 4.0

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.world.world_size > 1:
            # its own, so that it does not matter what else is sent during the backward pass
            self._group = dist.new_group(timeout=timedelta(seconds=self.config.timeout_s))
        return super().wrap(model)

    def start(self, tensor: Tensor) -> Pending:
        self.note("all_reduce", tensor)
        started: Pending = dist.all_reduce(
            tensor, op=dist.ReduceOp.AVG, group=self._group, async_op=True
        )
        return started


build = AllReduce
