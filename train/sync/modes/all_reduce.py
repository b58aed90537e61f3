"""Average gradients with one all_reduce per bucket, while further gradients are computed."""

from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor, nn

from ..base import DEFAULT_MB, SyncOptions
from ..buckets.bucketed_sync import BucketSync, Done, Pending
from ..buckets.layout import Bucket
from ..compression.base import load
from ..ranks import Ranks


class AllReduce(BucketSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes (gloo's and nccl's ring).

    With `compress` a bucket is sent as that says, after the backward pass.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        self._compressor = load(ranks, options)
        self.overlaps = self._compressor is None
        self.default_mb = 4.0 if self.overlaps else DEFAULT_MB
        super().__init__(ranks, options)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.ranks.world_size > 1:
            # its own, so that it does not matter what else is sent during the backward pass
            self._group = dist.new_group(timeout=timedelta(seconds=self.options.timeout_s))
        return super().wrap(model)

    def start(self, tensor: Tensor) -> Pending:
        self.note("all_reduce", tensor)
        started: Pending = dist.all_reduce(
            tensor, op=dist.ReduceOp.AVG, group=self._group, async_op=True
        )
        return started

    def start_bucket(self, number: int, bucket: Bucket) -> Pending:
        if self._compressor is None:
            return super().start_bucket(number, bucket)
        self._compressor.average(number, bucket.views)
        return Done()

    def state(self) -> dict[str, Tensor]:
        return {} if self._compressor is None else self._compressor.state()

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._compressor is not None:
            self._compressor.restore(state, next(model.parameters()).device)


build = AllReduce
