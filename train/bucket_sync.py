"""A hand-written mode says how to average one tensor; this gives it the gradients, as they come.

They come in buckets, in the order in which the backward pass makes them, each started as soon as it
is full, so that it travels while further gradients are computed. Large embeddings come last, and
only the rows that some rank has used.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from configs.schema import TrainConfig
from train import sparse_rows
from train.bucket_size import Chooser
from train.buckets import Bucket, groups
from train.grad_sync import DEFAULT_MB, MIB, GradSync, all_reduce, broadcast
from train.world import World


class Pending(Protocol):
    """What was started; `wait` returns when it is done, and raises what went wrong."""

    def wait(self) -> Any: ...


class Done:
    """Nothing is left to wait for."""

    def wait(self) -> None:
        pass


class BucketSync(GradSync):
    """A mode implements `average`; or `start`, where it can go on while gradients are computed."""

    overlaps = False  # whether `start` returns at once, and uses process groups of its own
    default_mb = DEFAULT_MB

    def __init__(self, world: World, config: TrainConfig) -> None:
        super().__init__(world, config)
        self._is_early = config.overlap and self.overlaps
        self._by_rows = config.sparse_rows
        self._chooser = Chooser(world, config.bucket_mb, self.default_mb)
        self._order: list[nn.Parameter] = []  # of the parameters, as their gradients become ready
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[nn.Parameter, Bucket] = {}
        self._embeddings: list[nn.Parameter] = []
        self._underway: list[Pending] = []  # of the first buckets, in their order
        self._is_last = True  # micro-batch of a step
        self._began: float | None = None

    @property
    def bucket_mb(self) -> float:
        """The size of buckets, as it is now."""
        return self._chooser.bucket_mb

    def average(self, tensor: Tensor) -> None:
        """Make `tensor` (dense, contiguous) the mean over ranks, in place, on every rank."""
        raise NotImplementedError

    def start(self, tensor: Tensor) -> Pending:
        """Begin to do so; every rank calls this with the same shapes in the same order."""
        self.average(tensor)
        return Done()

    def start_bucket(self, number: int, bucket: Bucket) -> Pending:
        """Likewise a bucket, the same `number` in every step."""
        return self.start(bucket.flat)

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        if self.world.world_size == 1:
            return model
        if self._by_rows:
            self._embeddings = sparse_rows.candidates(model)
        by_rows = set(self._embeddings)
        trained = [param for param in model.parameters() if param.requires_grad][::-1]
        self._order = [param for param in trained if param not in by_rows]
        if self._is_early:
            self._ready: list[nn.Parameter] = []
            for param in self._order:
                param.register_post_accumulate_grad_hook(self._is_ready)
        return model

    @contextmanager
    def _adding_up(self) -> Iterator[None]:
        self._is_last = False
        try:
            yield
        finally:
            self._is_last = True

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        return self._adding_up()

    def _is_ready(self, param: nn.Parameter) -> None:
        """The backward pass has made this gradient: take it, and start what is full."""
        if not self._is_last:
            return
        if not self._buckets:  # the first step: learn the order
            self._ready.append(param)
            return
        self._bucket_of[param].take(param)
        # in the same order on every rank, whatever became ready first here
        while len(self._underway) < len(self._buckets) and self._next().is_full:
            self._start_next()

    def _next(self) -> Bucket:
        return self._buckets[len(self._underway)]

    def _start_next(self) -> None:
        if self._began is None:
            self._began = time.perf_counter()
        pending = self.start_bucket(len(self._underway), self._next())
        self._underway.append(pending)
        if not self._is_early:
            pending.wait()

    def sync(self, model: nn.Module) -> None:
        if self.world.world_size == 1:
            return
        # Until now it was hidden; what is left is waited for.
        now = time.perf_counter()
        self.comm_s = self.overlapped_s = now - (self._began or now)
        if not self._buckets:
            self._make_buckets()
        for bucket in self._buckets[len(self._underway) :]:
            bucket.take_rest()
            self._start_next()
        wanted, unions = self._agree()
        moving = self._start_rows(unions)
        for bucket, pending in zip(self._buckets, self._underway, strict=True):
            pending.wait()
            bucket.give_back([wanted[param] for param in bucket.params])
        for rows, pending in moving:
            pending.wait()
            rows.give_back()
        self._underway.clear()
        self._began = None
        self._choose()

    def _start_rows(
        self, unions: Sequence[Tensor | None]
    ) -> list[tuple[sparse_rows.Rows, Pending]]:
        moving = [
            sparse_rows.Rows(weight, union)
            for weight, union in zip(self._embeddings, unions, strict=True)
            if union is not None
        ]
        return [(rows, self.start(rows.moved)) for rows in moving]

    def _choose(self) -> None:
        """After a step, perhaps go on with buckets of another size."""
        if self._chooser.stepped():
            self._make_buckets()
        if self._chooser.news:
            self.news.append(self._chooser.news)
            self._chooser.news = ""

    def _agree(self) -> tuple[dict[nn.Parameter, bool], list[Tensor | None]]:
        """Which gradients some rank has, and of each embedding the rows; None: no rank has any."""
        had = [self._bucket_of[param].had(param) for param in self._order]
        had += [weight.grad is not None for weight in self._embeddings]
        device = self._order[0].device if self._order else self._embeddings[0].device
        marks = [torch.tensor(had, dtype=torch.uint8, device=device)]
        marks += [sparse_rows.touched(one.grad, len(one), device) for one in self._embeddings]
        sizes = [len(mark) for mark in marks]
        flags, *unions = all_reduce(self.world, torch.cat(marks), dist.ReduceOp.MAX).split(sizes)
        some_has = [bool(flag) for flag in flags.tolist()]
        count = len(self._order)
        kept = [union if one else None for union, one in zip(unions, some_has[count:], strict=True)]
        return dict(zip(self._order, some_has[:count], strict=True)), kept

    def _make_buckets(self) -> None:
        """Once the order is known, on all ranks that of rank 0; and for each other size."""
        if self._is_early and not self._buckets:
            self._order = self._agreed_order()
        limit = int(self.bucket_mb * MIB)
        self._buckets = [Bucket(params) for params in groups(self._order, limit)]
        self._bucket_of = {param: one for one in self._buckets for param in one.params}

    def _agreed_order(self) -> list[nn.Parameter]:
        index = {param: at for at, param in enumerate(self._order)}
        ready = [index[param] for param in dict.fromkeys(self._ready)]
        rest = sorted(set(range(len(self._order))) - set(ready))
        order = torch.tensor([*ready, *rest], device=self._order[0].device)
        broadcast(self.world, [order])
        return [self._order[at] for at in order.tolist()]
