"""What torch's DDP calls when a bucket of gradients is full: it becomes the mean over ranks.

Every rank's DDP calls the hook of its buckets in their order, whatever became ready first; so what
a hook sends, and what it waits for, comes in the same order everywhere. A callback of a future runs
whenever that is done: it computes, but sends nothing and waits for nothing. What sends again once
something has come is done by a thread, through a group of its own (`ThreadedHook`).

DDP makes its buckets anew after the first pass: a hook looks parameters up in the bucket it is
given, and remembers none.
"""

import atexit
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ..base import SyncOptions
from ..flat import flatten, spread
from ..ranks import Ranks
from . import sparse_rows


@dataclass(frozen=True)
class Bucket:
    """What a bucket of DDP's holds: parts of `buffer`, and large embeddings' by rows."""

    buffer: Tensor  # (n,)
    params: Sequence[Tensor]
    gradients: Sequence[Tensor]  # of `params`, which lie in `buffer`
    rows: Sequence[sparse_rows.Rows]  # all that is in it beside

    def moved(self) -> Tensor:
        """What has to be averaged: (values,)."""
        if not self.rows:
            return self.buffer
        return flatten([*self.gradients, *(one.moved for one in self.rows)])

    def put_back(self, mean: Tensor) -> Tensor:
        """The bucket, with the mean of what `moved` returned."""
        if self.rows:
            spread(mean, [*self.gradients, *(one.moved for one in self.rows)])
            for one in self.rows:
                one.give_back()
        return self.buffer


class BucketHook(ABC):
    """Implemented by a file of modes/ or compression/: `start` makes a tensor the mean."""

    default_mb: float | None = 4.0  # of a bucket on gloo; None: DDP's own

    def __init__(self, model: nn.Module, ranks: Ranks, options: SyncOptions) -> None:
        """`model`: what DDP has wrapped; `ranks` those of its group."""
        self.ranks, self.options = ranks, options
        on_gloo = dist.get_backend(ranks.group) == "gloo"
        by_rows = sparse_rows.candidates(model) if options.sparse_rows and on_gloo else ()
        self._by_rows: set[Tensor] = set(by_rows)

    @abstractmethod
    def start(self, flat: Tensor) -> Future[Tensor]:
        """Begin to make `flat` (dense, contiguous) the mean over ranks, the same bits on each."""

    def send(self, bucket: Bucket) -> Future[Tensor]:
        """Likewise a bucket; the future has its buffer."""
        moved = bucket.moved()
        if not moved.numel():  # rows of an embedding that no rank has used
            return done_with(bucket.buffer)
        mean = self.start(moved)
        return mean.then(lambda done: bucket.put_back(done.value()))

    def finish(self) -> None:
        """The last bucket of a pass has been sent: DDP waits for all of them now."""
        return

    def average(self, _: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """What DDP calls."""
        if bucket.index() == 0:
            self.ranks.ledger.step.clear()  # of the pass before, if nobody asked for it
        sent = self._send(bucket)
        if bucket.is_last():
            self.finish()
        return sent

    def _send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        if buffer.is_sparse:
            return self._sparse(buffer.div_(self.ranks.world_size))
        if not buffer.numel():
            return done_with(buffer)
        if buffer.is_complex():
            buffer = torch.view_as_real(buffer).view(-1)
        params, gradients = bucket.parameters(), bucket.gradients()
        pairs = list(zip(params, gradients, strict=True))
        large = [one for param, one in pairs if param in self._by_rows]
        rest = [(param, one) for param, one in pairs if param not in self._by_rows]
        found = Bucket(
            buffer,
            [param for param, _ in rest],
            [one for _, one in rest],
            sparse_rows.rows_in_use(large, self.ranks) if large else (),
        )
        sent = self.send(found)
        whole = bucket.buffer()
        return sent if whole is buffer else sent.then(lambda done: (done.value(), whole)[1])

    def _sparse(self, gradient: Tensor) -> Future[Tensor]:
        """As DDP by itself sends it, in every mode."""
        self.ranks.ledger.gradient("all_reduce", gradient._values())
        work = dist.all_reduce(gradient, group=self.ranks.group, async_op=True)
        assert work is not None
        total: Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
        return total

    def state(self) -> dict[str, Tensor]:
        """What this rank remembers from step to step, by name: a checkpoint keeps it."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""
        return


def done_with(buffer: Tensor) -> Future[Tensor]:
    """There is nothing to send."""
    done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    done.set_result(buffer)
    return done


def summed(tensor: Tensor, ranks: Ranks) -> Future[Tensor]:
    """Begin to add `tensor` up over the ranks, in place."""
    ranks.ledger.gradient("all_reduce", tensor)
    work = dist.all_reduce(tensor, group=ranks.group, async_op=True)
    assert work is not None
    total: Future[Tensor] = work.get_future().then(lambda done: (done.value(), tensor)[1])
    return total


class ThreadedHook(BucketHook):
    """Bucket after bucket in a thread, through groups of this model's own.

    These are made when the first bucket comes, where all ranks are together.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(model, ranks, options)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="muster-sync")
        atexit.register(_leave_groups, weakref.ref(self))

    @cached_property
    def group(self) -> dist.ProcessGroup:
        """Other than DDP's, in which something else may be sent meanwhile."""
        return self.ranks.own_group(self.options.timeout_s)

    def in_thread(self, work: Any, *given: Any) -> Future[Tensor]:
        """What `work(*given)` returns; an error of it is that of the backward pass."""
        promised: Future[Any] = Future()

        def run() -> None:
            try:
                promised.set_result(work(*given))
            except BaseException as error:  # noqa: BLE001 (who waits for it is told)
                promised.set_result(error)

        self._thread.submit(run)
        return promised.then(value_or_error)


def value_or_error(done: Future[Any]) -> Tensor:
    """What was promised; an error is raised here, since as it is DDP would take it for a tensor."""
    found = done.value()
    if isinstance(found, BaseException):
        raise found
    result: Tensor = found
    return result


def _leave_groups(found: "weakref.ref[ThreadedHook]") -> None:
    """Let go of the groups before the interpreter ends, which joins their threads.

    One that wants the interpreter while that ends aborts the process.
    """
    hook = found()
    if hook is not None:
        for name, value in list(vars(hook).items()):
            if isinstance(value, dist.ProcessGroup):
                del vars(hook)[name]
