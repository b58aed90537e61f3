"""Each rank holds the optimizer's state of its own part of every parameter: ZeRO's first stage.

Gradients are reduced to the ranks' parts, bucket by bucket, while further gradients are computed:
each rank sends every other rank that rank's part, and gets the mean of its own. It immediately
frees its gradients of the other ranks' parts. The optimizer updates this rank's parts, which are in
the memory of the parameters themselves. Then all ranks gather all parts. The same number of bytes
crosses the network as with all_reduce. Every optimizer that treats each value separately gives the
same result as with whole parameters.

S. Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion parameter models", 2020.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from muster.errors import MusterError

from ..base import DEFAULT_MB, MIB, SyncOptions
from ..ddp.hooks import candidates, rows_in_use
from ..ranks import Ranks, backend_of, dense_gradient, groups
from ..sharding.bucket import ShardedBucket
from ..sharding.parts import NUMBERS, Shard, ShardedSync

MAX_WAITING_BYTES = (
    16 * MIB
)  # of gradients that may wait for the network; beyond it, computing waits
BUCKETS_AT_ONCE = 2  # buckets of parameters that are gathered at the same time
BUCKETS_ON_NCCL = 4  # this many of NCCL's larger buckets may wait for the network
BUCKET_MB = 4.0


class Zero1(ShardedSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes, as with all_reduce.

    For each bucket, a step has one all_to_all (on NCCL one reduce_scatter) and one all_gather.
    """

    _started = 0  # buckets that were started, in their order
    _is_last = True  # whether this is the last micro-batch of a step

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.shards: dict[nn.Parameter, Shard] = {}

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        # a group only for this, so that other traffic in the backward pass does not matter
        group = self.ranks.own_group(self.options.timeout_s)
        self._peers = replace(self.ranks, group=group, carries_gradients=True)
        on_nccl = backend_of(self._device, group) == "nccl"
        # On NCCL whole embeddings are sent: the host would have to wait to learn which rows are
        # used.
        by_rows = candidates(model) if self.options.sparse_rows and not on_nccl else []
        # Roughly the order in which gradients become ready; the same on every rank.
        trained = [param for param in [*model.parameters()][::-1] if param.requires_grad]
        sent = [param for param in trained if param not in set(by_rows)]
        bucket_bytes = self.options.bucket_bytes(DEFAULT_MB if on_nccl else BUCKET_MB)
        self._most_waiting = MAX_WAITING_BYTES
        if on_nccl:
            self._most_waiting = max(MAX_WAITING_BYTES, BUCKETS_ON_NCCL * bucket_bytes)
        self._buckets = [
            ShardedBucket(params, self.ranks, group) for params in groups(sent, bucket_bytes)
        ]
        self._embeddings = [ShardedBucket([weight], self.ranks, group) for weight in by_rows]
        self._sending = deque[ShardedBucket]()
        for bucket in (*self._buckets, *self._embeddings):
            self.shards |= zip(bucket.params, bucket.shards, strict=True)
        self._bucket_of = {param: bucket for bucket in self._buckets for param in bucket.params}
        if self.options.overlap:
            for param in sent:
                param.register_post_accumulate_grad_hook(self._is_ready)
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """Make `optimizer` update this rank's parts of its parameters."""
        for group in super().prepare(optimizer).param_groups:
            group["params"] = [self.shards[param].part for param in group["params"]]
        return optimizer

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        self._is_last = False
        try:
            yield
        finally:
            self._is_last = True

    def _is_ready(self, param: nn.Parameter) -> None:
        """Called when the gradient of `param` is ready: start full buckets, in their order."""
        if not self._is_last:
            return
        missing = self._bucket_of[param].missing
        if param not in missing:
            raise MusterError(
                "sync mode zero1: a gradient was computed twice in one backward pass, as "
                "happens with reentrant checkpointing of a layer that is used more than once"
                "\ntip: checkpoint with use_reentrant=False, or add --no-overlap"
            )
        missing.remove(param)
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        bucket.reduce()
        self._sending.append(bucket)
        waiting = sum(bucket.nbytes for bucket in self._sending)
        while self._sending and (
            self._sending[0].work.is_completed() or waiting > self._most_waiting
        ):
            waiting -= self._sending[0].nbytes
            self._sending.popleft().wait()

    def used(self, model: nn.Module) -> list[bool]:
        while self._started < len(self._buckets):
            self._start_next()
        used = [had for bucket in self._buckets for had in bucket.had_gradient]
        return used + [bucket.params[0].grad is not None for bucket in self._embeddings]

    @torch.no_grad()
    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        while self._sending:
            self._sending.popleft().wait()
        self._started = 0
        is_used = iter(used)
        for bucket in self._buckets:
            bucket.set_gradients([next(is_used) for _ in bucket.params])
        # Few rows of embeddings are used: every rank gets the mean of all of them.
        weights = [bucket.params[0] for bucket in self._embeddings]
        used_weights = [weight for weight in weights if next(is_used)]
        gradients = [dense_gradient(weight).contiguous() for weight in used_weights]
        for weight in weights:
            weight.grad = self.shards[weight].part.grad = None
        moving = rows_in_use(gradients, self.ranks) if gradients else []
        for weight, gradient, rows in zip(used_weights, gradients, moving, strict=True):
            self._peers.all_reduce(rows.moved.div_(self.ranks.world_size))
            rows.give_back()
            self.shards[weight].part.grad = self.shards[weight].part_of(gradient).clone()

    def updated(self, model: nn.Module) -> None:
        """Gather the parts that the other ranks have updated."""
        buckets = [*self._buckets, *self._embeddings]
        for starting, finishing in zip_longest(buckets, [*[None] * BUCKETS_AT_ONCE, *buckets]):
            if starting is not None:
                starting.gather()
            if finishing is not None:
                finishing.finish()

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        return super().clip([shard.part for shard in self.shards.values()], limit)

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        for param, shard in self.shards.items():
            state = optimizer.state.get(shard.part, {})
            cut = sorted(key for key in state if key not in NUMBERS and state[key] is not None)
            yield param, {**state, **{key: shard.gathered(state[key]) for key in cut}}

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        shard = self.shards[param]
        optimizer.state[shard.part] = {
            key: value if key in NUMBERS else shard.part_of(value).clone()
            for key, value in state.items()
        }


build = Zero1
