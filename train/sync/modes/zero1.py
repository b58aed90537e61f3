"""Each rank keeps the optimizer's state of its own part of every parameter: ZeRO's first stage.

A bucket of gradients is reduced to the ranks' parts while further gradients are computed: each
rank sends every other the part that is that one's, and gets the mean of its own. What it had of the
others' parts is freed at once. The optimizer steps the own parts, which lie in the parameters
themselves; then all ranks gather all parts. As many bytes cross the network as with all_reduce,
and all optimizers that treat every value for itself do the same as on whole parameters.

S. Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2020.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from ..base import MIB, SyncOptions
from ..buckets.bucketed_sync import BucketSync, Pending
from ..buckets.layout import Bucket, groups
from ..ranks import Ranks
from ..sharding.parts import Parts
from ..sharding.shares import SharedBucket, ShareInPlace

UNDERWAY_BYTES = 16 * MIB  # of gradients that may wait for the network: then computing waits
AT_ONCE = 2  # groups of parameters that are gathered


class Zero1(BucketSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes, as with all_reduce."""

    overlaps = True
    default_mb = 4.0

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self._shares: dict[nn.Parameter, ShareInPlace] = {}
        self._sending: deque[Reduction] = deque()

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        if self.ranks.world_size > 1:
            # its own, so that it does not matter what else is sent during the backward pass
            self._group = dist.new_group(timeout=timedelta(seconds=self.options.timeout_s))
            trained = [param for param in model.parameters() if param.requires_grad]
            self._shares = {param: ShareInPlace(param, self.ranks) for param in trained}
            self._parts = Parts(self.ranks, self._shares)
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        if self.ranks.world_size > 1:
            self._parts.give_to(optimizer, self._shares, "zero1")
        return optimizer

    def make_bucket(self, params: Sequence[nn.Parameter]) -> Bucket:
        return SharedBucket(params, [self._shares[param] for param in params])

    def start_bucket(self, number: int, bucket: Bucket) -> Pending:
        return self.start_late(bucket)

    def start_late(self, bucket: Bucket) -> Pending:
        assert isinstance(bucket, SharedBucket)
        self.note("all_to_all", bucket.flat)
        reduction = Reduction(bucket, self._group)
        self._sending.append(reduction)
        while self._sending and (self._sending[0].is_done() or self._waiting > UNDERWAY_BYTES):
            self._sending.popleft().wait()
        return reduction

    @property
    def _waiting(self) -> int:
        return sum(reduction.nbytes for reduction in self._sending)

    def start(self, tensor: Tensor) -> Pending:
        """Rows of an embedding: as they are few, every rank gets the mean of all."""
        self.note("all_reduce", tensor)
        started: Pending = dist.all_reduce(
            tensor, op=dist.ReduceOp.AVG, group=self._group, async_op=True
        )
        return started

    def exchange(self, model: nn.Module, row: Tensor) -> Tensor:
        rows = super().exchange(model, row)
        self._sending.clear()
        for param in self._embeddings:
            share, gradient = self._shares[param], param.grad
            share.part.grad = None if gradient is None else share.part_of(gradient).clone()
            param.grad = None
        return rows

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        if self.ranks.world_size == 1:
            return super().clip(params, limit)
        return self._parts.clip(limit, self._device)

    @torch.no_grad()
    def updated(self, model: nn.Module) -> None:
        """Gather what the ranks have made of their parts."""
        underway: deque[Gathering] = deque()
        for params in groups(list(self._shares), self._bucket_bytes):
            gathering = Gathering([self._shares[param] for param in params], self.ranks.rank)
            self.note("all_gather", gathering.own)
            gathering.start(self._group)
            underway.append(gathering)
            if len(underway) > AT_ONCE:
                underway.popleft().finish()
        for gathering in underway:
            gathering.finish()

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        if self.ranks.world_size == 1:
            return super().optimizer_state(model, optimizer)
        return self._parts.state(optimizer)

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        if self.ranks.world_size == 1:
            super().set_optimizer_state(optimizer, param, state)
        else:
            self._parts.set_state(optimizer, param, state)


class Reduction:
    """A bucket on its way: each rank sends every other its row of it, and adds up what comes."""

    def __init__(self, bucket: SharedBucket, group: dist.ProcessGroup) -> None:
        self._bucket, self.nbytes = bucket, bucket.nbytes
        self._came = torch.empty_like(bucket.flat)  # (ranks, row): this rank's row, of each rank
        # gloo's own reduce_scatter sends twice as much: it is an all_reduce.
        self._work = dist.all_to_all_single(
            self._came.view(-1), bucket.flat.view(-1), group=group, async_op=True
        )

    def is_done(self) -> bool:
        """Whether to wait for it would take no time."""
        return self._work is None or self._work.is_completed()

    @torch.no_grad()
    def wait(self) -> None:
        if self._work is None:
            return
        self._work.wait()
        self._bucket.mean = self._came.mean(dim=0)
        self._bucket.let_go()
        self._work = None
        del self._came


class Gathering:
    """Some parameters whose parts all ranks tell each other: `flat` is (ranks, row)."""

    def __init__(self, shares: Sequence[ShareInPlace], rank: int) -> None:
        self._shares, first = shares, shares[0]
        self._sizes = [share.full for share in shares]
        self._stays = len(shares) == 1 and first.is_even  # the parts are where they belong
        if self._stays:
            self._flat = first.values.view(first.world_size, -1)
        else:
            self._flat = first.param.new_zeros(first.world_size, sum(self._sizes))
        self.own = self._flat[rank]
        if not self._stays:
            places = self.own.split(self._sizes)
            into = [row[: len(one.part)] for row, one in zip(places, shares, strict=True)]
            torch._foreach_copy_(into, [share.part for share in shares])

    def start(self, group: dist.ProcessGroup) -> None:
        self._work = dist.all_gather_single(
            self._flat.view(-1), self.own, group=group, async_op=True
        )

    def finish(self) -> None:
        """Afterwards the parameters are whole."""
        self._work.wait()
        if self._stays:
            return
        values, received = list[Tensor](), list[Tensor]()
        for share, columns in zip(self._shares, self._flat.split(self._sizes, dim=1), strict=True):
            from_there, into = share.pairs(share.param, columns)
            received += from_there
            values += into
        torch._foreach_copy_(values, received)


build = Zero1
