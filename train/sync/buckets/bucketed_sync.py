"""A hand-written mode says how to average one tensor; this gives it the gradients, as they come.

The first step learns in which order gradients become ready: hooks on the parameters tell when one
is complete. All ranks then agree on the order that rank 0 has seen, and cut it into buckets. From
the second step on a bucket is started as soon as it is full and those before it have been started,
so that it travels while further gradients are computed. After the backward pass, `exchange` starts
those that are left (a gradient may be missing on this rank), and then, in this order on all ranks:

1. one all_reduce(MAX) of bytes, in which ranks tell each other what only they know: which
   gradients they have, which came after their bucket had left ("late", as when a layer is used
   again under reentrant checkpointing), which rows of large embeddings they touched, and the
   caller's row;
2. late gradients, in buckets of their own: the mean of a sum is the sum of the means;
3. of each large embedding the rows that some rank has touched (sparse_rows.py);
4. waiting for all of it; only then each `.grad` is the mean.

Collectives of one group are matched by their order alone. So whatever became ready first on this
rank, buckets leave in the agreed order, and what follows depends on the flags, which are the same
everywhere.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..base import DEFAULT_MB, MIB, GradSync, SyncOptions
from ..ranks import Ranks
from . import sparse_rows
from .auto_size import Chooser
from .layout import Bucket, groups

MISSING, THERE, LATE = range(3)  # a gradient; late: its bucket had left when more of it came


class Pending(Protocol):
    """What was started; `wait` returns when it is done, and raises what went wrong."""

    def wait(self) -> Any: ...


class Done:
    """Nothing is left to wait for."""

    def wait(self) -> None:
        pass


class Each:
    """Several works, one after the other."""

    def __init__(self, works: Sequence[Pending]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


class Flags(NamedTuple):
    """What all ranks have told each other in a step, the same on each of them."""

    rows: Tensor  # (world_size, n): each rank's own
    states: Sequence[int]  # of every gradient in a bucket, bucket by bucket: the largest of a rank
    unions: Sequence[Tensor | None]  # rows of each embedding that some rank has used; None: no rank


class BucketSync(GradSync):
    """A mode implements `average`; or `start`, where it can go on while gradients are computed."""

    overlaps = False  # whether `start` returns at once, and uses process groups of its own
    default_mb = DEFAULT_MB

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self._is_early = options.overlap and self.overlaps
        self._chooser = Chooser(ranks, options.bucket_mb, self.default_mb)
        self._order: list[nn.Parameter] = []  # of the parameters, as their gradients become ready
        self._embeddings: list[nn.Parameter] = []
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[nn.Parameter, Bucket] = {}  # each parameter of `_order` is in one
        self._is_learning = True  # the order, in the first step
        # How often a backward pass adds to a gradient, and how often it still will in this step.
        self._times: dict[nn.Parameter, int] = {}
        self._left: dict[nn.Parameter, int] = {}
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

    def start_late(self, bucket: Bucket) -> Pending:
        """Likewise one of gradients that came after their bucket had left."""
        return self.start(bucket.flat)

    def make_bucket(self, params: Sequence[nn.Parameter]) -> Bucket:
        """Gradients that go together; a mode may have them lie in an order of its own."""
        return Bucket(params)

    def pieces(self, tensor: Tensor) -> Sequence[Tensor]:
        """What is larger than a bucket in pieces of one, for modes with several stages.

        Without overlap, or with a collective for each parameter, it stays as it is.
        """
        values = int(self.bucket_mb * MIB) // tensor.itemsize
        if not self._is_early or not 0 < values < tensor.numel():
            return [tensor]
        return list(tensor.view(-1).split(values))

    def wrap(self, model: nn.Module) -> nn.Module:
        model = super().wrap(model)
        if self.ranks.world_size == 1:
            return model
        if self.options.sparse_rows:
            self._embeddings = sparse_rows.candidates(model)
        by_rows = set(self._embeddings)
        trained = [param for param in model.parameters() if param.requires_grad][::-1]
        self._order = [param for param in trained if param not in by_rows]
        self._device = next(model.parameters()).device
        if self._is_early:
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
        """The backward pass has added to this gradient: start what is full.

        Mostly it does so once. Where parts of the graph have backward passes of their own, as with
        reentrant checkpointing of a layer that is used again, it is each of them; the last counts.
        """
        if not self._is_last:
            return
        if self._is_learning:  # in the order of the last times
            self._times[param] = self._times.pop(param, 0) + 1
            return
        left = self._left[param] = self._left[param] - 1
        if left < 0:  # more often than ever before; from the next step on it is waited for
            self._times[param] += 1
        elif left == 0:
            bucket = self._bucket_of[param]
            bucket.missing -= 1
            # in the same order on every rank, whatever became ready first here
            while len(self._underway) < len(self._buckets) and not self._next().missing:
                self._start_next()

    def _next(self) -> Bucket:
        return self._buckets[len(self._underway)]

    def _start_next(self) -> None:
        if self._began is None:
            self._began = time.perf_counter()
        bucket = self._next()
        bucket.take()
        pending = self.start_bucket(len(self._underway), bucket)
        self._underway.append(pending)
        if not self._is_early:
            pending.wait()

    def sync(self, model: nn.Module) -> None:
        self.exchange(model, torch.zeros(0))

    def exchange(self, model: nn.Module, row: Tensor) -> Tensor:
        if self.ranks.world_size == 1:
            return row[None]
        # Until now it was hidden; what is left is waited for.
        now = time.perf_counter()
        self.comm_s = self.overlapped_s = now - (self._began or now)
        if self._is_learning:
            self._learn()
        while len(self._underway) < len(self._buckets):
            self._start_next()
        flags = self._exchange_flags(row)
        late = self._start_late(flags)
        moving = self._start_rows(flags)
        states = iter(flags.states)
        for bucket, pending in zip(self._buckets, self._underway, strict=True):
            pending.wait()
            bucket.give_back([next(states) != MISSING for _ in bucket.params])
        for bucket, pending in late:
            pending.wait()
            bucket.add_back()
        for rows, pending in moving:
            pending.wait()
            rows.give_back()
        self._underway.clear()
        self._began, self._left = None, self._times.copy()
        self._choose()
        return flags.rows

    def _exchange_flags(self, row: Tensor) -> Flags:
        """Which gradients some rank has, of each embedding the rows, and each rank's `row`.

        All of it as bytes, of which the largest counts: a rank's row has a place of its own, where
        the others leave zeros.
        """
        states = [
            LATE if param.grad is not None else int(had)  # the bucket has taken it, but for more
            for bucket in self._buckets
            for param, had in zip(bucket.params, bucket.had, strict=True)
        ]
        count = len(states)
        states += [int(weight.grad is not None) for weight in self._embeddings]
        size = row.nbytes
        # (world_size, bytes of a row), of which this rank fills its own
        rows = torch.zeros(self.ranks.world_size, size, dtype=torch.uint8, device=self._device)
        rows[self.ranks.rank] = row.view(torch.uint8)
        marks = [rows.view(-1), torch.tensor(states, dtype=torch.uint8, device=self._device)]
        marks += [sparse_rows.touched(one.grad, len(one), self._device) for one in self._embeddings]
        flags = self.ranks.all_reduce(torch.cat(marks), dist.ReduceOp.MAX)
        flag_rows, flag_states, *unions = flags.split([len(mark) for mark in marks])
        states = flag_states.tolist()
        used = zip(unions, states[count:], strict=True)
        return Flags(
            flag_rows.view(row.dtype).view(self.ranks.world_size, len(row)),
            states[:count],
            [union if state else None for union, state in used],
        )

    def _start_late(self, flags: Flags) -> list[tuple[Bucket, Pending]]:
        """What came after its bucket had left goes by itself: a sum's mean is that of its parts."""
        params = [param for bucket in self._buckets for param in bucket.params]
        late = [param for param, state in zip(params, flags.states, strict=True) if state == LATE]
        found = [self.make_bucket(group) for group in groups(late, self._bucket_bytes)]
        for bucket in found:
            bucket.take()
        return [(bucket, self.start_late(bucket)) for bucket in found]

    def _start_rows(self, flags: Flags) -> list[tuple[sparse_rows.Rows, Pending]]:
        moving = [
            sparse_rows.Rows(weight, union)
            for weight, union in zip(self._embeddings, flags.unions, strict=True)
            if union is not None
        ]
        return [(rows, self.start(rows.moved)) for rows in moving]

    def _choose(self) -> None:
        """After a step, perhaps go on with buckets of another size."""
        if self._chooser.stepped():
            self._make_buckets()
        if self._chooser.messages:
            self.messages.append(self._chooser.messages)
            self._chooser.messages = ""

    @property
    def _bucket_bytes(self) -> int:
        return int(self.bucket_mb * MIB)

    def _make_buckets(self) -> None:
        """Once the order is known, on all ranks that of rank 0; and for each other size."""
        self._buckets = [self.make_bucket(one) for one in groups(self._order, self._bucket_bytes)]
        self._bucket_of = {param: one for one in self._buckets for param in one.params}

    def _learn(self) -> None:
        """From the first backward pass."""
        if self._is_early and self._order:
            self._order = self._agreed_order()
        self._times = {param: self._times.get(param, 1) for param in self._order}
        self._make_buckets()
        self._is_learning = False

    def _agreed_order(self) -> list[nn.Parameter]:
        index = {param: at for at, param in enumerate(self._order)}
        ready = [index[param] for param in self._times]
        rest = sorted(set(range(len(self._order))) - set(ready))
        order = torch.tensor([*ready, *rest], device=self._device)
        self.ranks.broadcast([order])
        return [self._order[at] for at in order.tolist()]
