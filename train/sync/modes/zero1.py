"""Each rank holds the optimizer's state of its own part of every parameter: ZeRO's first stage.

A bucket of gradients is reduced to the ranks' parts while further gradients are computed: each rank
sends every other rank that rank's part, and gets the mean of its own. It frees its gradients of the
others' parts at once. The optimizer updates the own parts, which lie in the parameters themselves;
then all ranks gather all parts. As many bytes cross the network as with all_reduce. Every optimizer
that treats each value separately gives the same result as on whole parameters.

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

from ..base import MIB, SyncOptions
from ..ddp.hooks import candidates, rows_in_use
from ..ranks import Ranks, dense_gradient, groups
from ..sharding.bucket import Bucket
from ..sharding.parts import NUMBERS, PartedSync, Share

MOST_BYTES = 16 * MIB  # of gradients that may wait for the network; beyond it, computing waits
AT_ONCE = 2  # buckets of parameters that are gathered at the same time
BUCKET_MB = 4.0


class Zero1(PartedSync):
    """Every rank sends and receives 2 (N-1)/N of the gradients' bytes, as with all_reduce."""

    _started = 0  # buckets that were started, in their order
    _is_last = True  # whether this is the last micro-batch of a step

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self.shares: dict[nn.Parameter, Share] = {}  # by parameter

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        # an own group, so that other traffic in the backward pass does not matter
        group = self.ranks.own_group(self.options.timeout_s)
        self._peers = replace(self.ranks, group=group, carries_gradients=True)
        by_rows = candidates(model) if self.options.sparse_rows else []
        # About the order in which gradients become ready; the same on every rank.
        sent = [one for one in [*model.parameters()][::-1] if one.requires_grad]
        sent = [one for one in sent if one not in set(by_rows)]
        bucket_bytes = self.options.bucket_bytes(BUCKET_MB)
        self._buckets = [Bucket(one, self.ranks, group) for one in groups(sent, bucket_bytes)]
        self._embeddings = [Bucket([one], self.ranks, group) for one in by_rows]  # one per bucket
        self._sending = deque[Bucket]()
        for bucket in (*self._buckets, *self._embeddings):
            self.shares |= zip(bucket.params, bucket.shares, strict=True)
        self._bucket_of = {param: one for one in self._buckets for param in one.params}
        if self.options.overlap:
            for param in sent:
                param.register_post_accumulate_grad_hook(self._is_ready)
        return model

    def prepare(self, optimizer: Optimizer) -> Optimizer:
        """Make `optimizer` update the parts of its parameters."""
        for group in super().prepare(optimizer).param_groups:
            group["params"] = [self.shares[param].part for param in group["params"]]
        return optimizer

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        self._is_last = False
        try:
            yield
        finally:
            self._is_last = True

    def _is_ready(self, param: nn.Parameter) -> None:
        """The gradient of `param` is ready: start the buckets that are full, in their order."""
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
        while self._started < len(self._buckets) and not self._buckets[self._started].missing:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self._buckets[self._started]
        self._started += 1
        bucket.reduce()
        self._sending.append(bucket)
        waiting = sum(bucket.nbytes for bucket in self._sending)
        while self._sending and (self._sending[0].work.is_completed() or waiting > MOST_BYTES):
            waiting -= self._sending[0].nbytes
            self._sending.popleft().wait()

    def used(self, model: nn.Module) -> list[bool]:
        while self._started < len(self._buckets):
            self._start_next()
        had = [one for bucket in self._buckets for one in bucket.had]
        return had + [bucket.params[0].grad is not None for bucket in self._embeddings]

    @torch.no_grad()
    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        while self._sending:
            self._sending.popleft().wait()
        self._started, is_used = 0, iter(used)
        for bucket in self._buckets:
            bucket.give([next(is_used) for _ in bucket.params])
        # Few rows of embeddings are used: every rank gets the mean of all of them.
        weights = [bucket.params[0] for bucket in self._embeddings]
        used_ones = [weight for weight in weights if next(is_used)]
        gradients = [dense_gradient(weight).contiguous() for weight in used_ones]
        for weight in weights:
            weight.grad = self.shares[weight].part.grad = None
        moving = rows_in_use(gradients, self.ranks) if gradients else []
        for weight, gradient, rows in zip(used_ones, gradients, moving, strict=True):
            self._peers.all_reduce(rows.moved.div_(self.ranks.world_size))
            rows.give_back()
            self.shares[weight].part.grad = self.shares[weight].part_of(gradient).clone()

    def updated(self, model: nn.Module) -> None:
        """Gather the parts that the other ranks have updated."""
        buckets = [*self._buckets, *self._embeddings]
        for begun, ended in zip_longest(buckets, [*[None] * AT_ONCE, *buckets]):
            if begun is not None:
                begun.gather()
            if ended is not None:
                ended.finish()

    def clip(self, params: Sequence[nn.Parameter], limit: float) -> Tensor:
        return super().clip([share.part for share in self.shares.values()], limit)

    def optimizer_state(
        self, model: nn.Module, optimizer: Optimizer
    ) -> Iterator[tuple[nn.Parameter, Mapping[str, Any]]]:
        for param, share in self.shares.items():
            state = optimizer.state.get(share.part, {})
            cut = sorted(key for key in state if key not in NUMBERS and state[key] is not None)
            yield param, {**state, **{key: share.whole(state[key]) for key in cut}}

    def set_optimizer_state(
        self, optimizer: Optimizer, param: nn.Parameter, state: dict[str, Any]
    ) -> None:
        share = self.shares[param]
        optimizer.state[share.part] = {
            key: value if key in NUMBERS else share.part_of(value).clone()
            for key, value in state.items()
        }


build = Zero1
