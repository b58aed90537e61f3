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
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from muster.errors import MusterError

from ..base import MIB, GradSync, SyncOptions
from ..ddp.sparse_rows import candidates, rows_in_use
from ..flat import groups
from ..ranks import Ranks, all_gather_single
from ..sharding.parts import Parts
from ..sharding.shares import SharedBucket, ShareInPlace

UNDERWAY_BYTES = 16 * MIB  # of gradients that may wait for the network: then computing waits
AT_ONCE = 2  # groups of parameters that are gathered
BUCKET_MB = 4.0


class Zero1(GradSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes, as with all_reduce."""

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self._shares: dict[nn.Parameter, ShareInPlace] = {}
        self._bucket_bytes = options.bucket_bytes(BUCKET_MB)
        self._started: list[Reduction] = []  # of the first buckets, in their order
        self._sending: deque[Reduction] = deque()
        self._is_last = True  # micro-batch of a step

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        if self.ranks.world_size == 1:
            return model
        self._device = next(model.parameters()).device
        # its own, so that it does not matter what else is sent during the backward pass
        self._group = self.ranks.own_group(self.options.timeout_s)
        trained = [param for param in model.parameters() if param.requires_grad]
        self._shares = {param: ShareInPlace(param, self.ranks) for param in trained}
        self._parts = Parts(self.ranks, self._shares)
        self._embeddings = candidates(model) if self.options.sparse_rows else []
        by_rows = set(self._embeddings)
        # As gradients become ready, mostly; the same order on every rank.
        order = [param for param in reversed(trained) if param not in by_rows]
        self._buckets = [
            SharedBucket(params, [self._shares[param] for param in params])
            for params in groups(order, self._bucket_bytes)
        ]
        self._bucket_of = {param: one for one in self._buckets for param in one.params}
        if self.options.overlap:
            for param in order:
                param.register_post_accumulate_grad_hook(self._is_ready)
        return model

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return self._adding_up()

    @contextmanager
    def _adding_up(self) -> Iterator[None]:
        self._is_last = False
        try:
            yield
        finally:
            self._is_last = True

    def _is_ready(self, param: nn.Parameter) -> None:
        """The backward pass has made this gradient: start what is full, in the order of buckets."""
        if not self._is_last:
            return
        missing = self._bucket_of[param].missing
        if param not in missing:
            raise MusterError(
                "sync mode zero1: a gradient has come twice in a backward pass, as with reentrant "
                "checkpointing of a layer that is used again; checkpoint with use_reentrant=False, "
                "or give --no-overlap"
            )
        missing.remove(param)
        while len(self._started) < len(self._buckets) and not self._next().missing:
            self._start_next()

    def _next(self) -> SharedBucket:
        return self._buckets[len(self._started)]

    def _start_next(self) -> None:
        bucket = self._next()
        bucket.take()
        self.note("all_to_all", bucket.flat)
        reduction = Reduction(bucket, self._group)
        self._started.append(reduction)
        self._sending.append(reduction)
        while self._sending and (self._sending[0].is_done() or self._waiting > UNDERWAY_BYTES):
            self._sending.popleft().wait()

    @property
    def _waiting(self) -> int:
        return sum(reduction.nbytes for reduction in self._sending)

    def sync(self, model: nn.Module) -> None:
        self.exchange(model, torch.zeros(0, dtype=torch.float64))

    @torch.no_grad()
    def exchange(self, model: nn.Module, row: Tensor) -> Tensor:
        if self.ranks.world_size == 1:
            return row[None]
        while len(self._started) < len(self._buckets):
            self._start_next()
        had = [one for bucket in self._buckets for one in bucket.had]
        had += [weight.grad is not None for weight in self._embeddings]
        rows, used = self.exchange_used(row, had)
        is_used = iter(used)
        for bucket, reduction in zip(self._buckets, self._started, strict=True):
            reduction.wait()
            bucket.give_back([next(is_used) for _ in bucket.params])
        self._started.clear()
        self._sending.clear()
        self._average_rows([weight for weight in self._embeddings if next(is_used)])
        return rows

    def _average_rows(self, weights: Sequence[nn.Parameter]) -> None:
        """As they are few, every rank gets the mean of all."""
        for weight in self._embeddings:
            self._shares[weight].part.grad = None
        gradients = [_dense(weight) for weight in weights]
        moving = rows_in_use(gradients, self.ranks) if weights else []
        for weight, gradient, rows in zip(weights, gradients, moving, strict=True):
            self.note("all_reduce", rows.moved)
            rows.moved /= self.ranks.world_size
            dist.all_reduce(rows.moved, group=self._group)
            rows.give_back()
            share = self._shares[weight]
            share.part.grad = share.part_of(gradient).clone()
        for weight in self._embeddings:
            weight.grad = None

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        if self.ranks.world_size > 1:
            self._parts.give_to(optimizer, self._shares, "zero1")
        return optimizer

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
        self._work = all_gather_single(self._flat.view(-1), self.own, group=group, async_op=True)

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


def _dense(weight: nn.Parameter) -> Tensor:
    gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
    return (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()


build = Zero1
