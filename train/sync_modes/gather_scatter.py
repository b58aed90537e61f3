"""Rank 0 gathers the gradients of all ranks, averages them element-wise, and scatters the mean."""

import torch
import torch.distributed as dist
from torch import Tensor

from train.grad_sync import BucketSync


class GatherScatter(BucketSync):
    """The root sends and receives (N-1) times the gradients' bytes, every other rank once."""

    def average(self, tensor: Tensor) -> None:
        gathered = means = None
        if self.world.is_main:
            gathered = [torch.empty_like(tensor) for _ in range(self.world.world_size)]
        dist.gather(tensor, gathered, dst=0)
        if gathered is not None:
            mean = gathered[0]
            for part in gathered[1:]:
                mean += part
            mean /= self.world.world_size
            means = [mean] * self.world.world_size
        dist.scatter(tensor, means, src=0)
        self.note("gather", tensor)
        self.note("scatter", tensor)


build = GatherScatter
