"""Average gradients with one all_reduce per bucket, while further gradients are computed."""

from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from muster.errors import UsageError

from ..base import DEFAULT_MB, SyncOptions
from ..buckets.bucketed_sync import BucketSync, Done, Each, Pending
from ..buckets.layout import Bucket
from ..buckets.levels import auto_levels, node_groups, two_levels
from ..buckets.levels.two_levels import TwoLevels
from ..compression.base import load
from ..ranks import Ranks


class AllReduce(BucketSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes (gloo's and nccl's ring).

    In two levels it is every node that does, with N the number of nodes (two_levels.py). They pay
    where a node has several workers, and not under nccl, which looks at nodes by itself.

    With `compress` a bucket is sent as that says, after the backward pass and in one level.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        self._compressor = load(ranks, options)
        self.overlaps = self._compressor is None
        self.default_mb = 4.0 if self.overlaps else DEFAULT_MB
        self._levels: int | None = 1  # None: to be chosen in the first step
        self._two_levels: TwoLevels | None = None  # where there are two
        super().__init__(ranks, options)

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.ranks.world_size > 1:
            # its own, so that it does not matter what else is sent during the backward pass
            self._group = dist.new_group(timeout=timedelta(seconds=self.options.timeout_s))
            if self._compressor is None and self.options.levels != 1:
                self._make_levels(next(model.parameters()).device)
            trained = [param.nbytes for param in model.parameters() if param.requires_grad]
            self._gradient_bytes = sum(trained)
        return super().wrap(model)

    def _make_levels(self, device: torch.device) -> None:
        """Have what two levels need, where there are two.

        Raises:
            UsageError: they are asked for on GPUs.
        """
        wanted = self.options.levels
        if device.type != "cpu":
            if wanted == 2:
                raise UsageError(
                    f"--levels 2 is for gloo on CPUs, but the model is on {device}, where nccl "
                    "enters each node once by itself; use --levels auto"
                )
            return
        nodes = node_groups.find(self.ranks)
        if node_groups.layered(nodes):
            self._two_levels = TwoLevels(nodes, self.ranks.rank, self.options.timeout_s)
            self._levels = None if wanted == "auto" else 2
        elif wanted == 2:
            those = f"{len(nodes)} nodes with a worker each" if len(nodes) > 1 else "one node"
            self.messages.append(f"levels 2: there is but one level, {those}")

    def start(self, tensor: Tensor) -> Pending:
        layered = self._two_levels
        if layered is not None and self._levels is None:
            ways: auto_levels.Ways = {1: self._start_in_one, 2: layered.start}
            size_bytes = min(self._bucket_bytes, self._gradient_bytes)
            self._levels, message = auto_levels.fastest(self.ranks, ways, size_bytes)
            self.messages.append(message)
        if layered is None or self._levels == 1:
            self.note("all_reduce", tensor)
            return self._start_in_one(tensor)
        self.note(two_levels.OPERATION, tensor)
        # in pieces, so that one is between nodes while the next is added up inside
        return Each([layered.start(piece) for piece in self.pieces(tensor)])

    def _start_in_one(self, tensor: Tensor) -> Pending:
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
        """What the compressor keeps; or how many levels were chosen: a run goes on with as many."""
        if self._compressor is not None:
            return self._compressor.state()
        if self.options.levels != "auto" or self._two_levels is None:
            return {}
        return {"levels": torch.tensor(self._levels or 0)}

    def restore(self, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        if self._compressor is not None:
            self._compressor.restore(state, next(model.parameters()).device)
        elif self._levels is None and "levels" in state:
            self._levels = int(state["levels"]) or None


build = AllReduce
