"""Average gradients with one all_reduce per bucket: sum over the ranks, then divide."""

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor, nn

from configs.schema import TrainConfig
from train import compressor
from train.grad_sync import BucketSync, buckets
from train.world import World


class AllReduce(BucketSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes (gloo's and nccl's ring)."""

    def __init__(self, world: World, config: TrainConfig) -> None:
        super().__init__(world, config)
        self._compressor = compressor.load(world, config)

    def average(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
        tensor /= self.world.world_size
        self.note("all_reduce", tensor)

    def sync(self, model: nn.Module) -> None:
        if self._compressor is None or self.world.world_size == 1:
            super().sync(model)
            return
        before = self.world.account.gradients.total()
        for key, bucket in enumerate(buckets(self._gradients(model), self.bucket_bytes)):
            self._compressor.average(key, bucket)
        self.payload_bytes += self.world.account.gradients.total() - before

    def state(self) -> dict[str, Tensor]:
        return {} if self._compressor is None else self._compressor.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._compressor is not None:
            self._compressor.restore(state)


build = AllReduce
