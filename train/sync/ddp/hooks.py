"""What torch's DDP calls when a bucket of gradients is full: it becomes the mean over ranks.

Every rank's DDP calls the hook of its buckets in their order, whatever became ready first; so what
a hook sends, and what it waits for, comes in the same order everywhere. A callback of a future runs
whenever that is done: it computes, but sends nothing and waits for nothing. What sends again once
something has come is done in a `Lane`: a thread, through a group of its own.

DDP makes its buckets anew after the first pass: a hook looks parameters up in the bucket it is
given, and remembers none.

Of a large embedding only the rows that some rank has looked up carry gradient: only they move. A
batch of some thousand tokens looks up a small part of a vocabulary of 30,000 or more, and the
gradient of every other row is zero. So ranks first tell each other which rows they touched (a byte
for each, of which the largest counts); the union is the same on all ranks. All other rows are zero
on every rank, and so is their mean: nothing is approximated.

    gradient (rows, width)  --union-->  moved (used rows, width)  --mean-->  gradient (rows, width)

Which rows these are is read from the gradient itself, so that it is exact however the weight was
used.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from ..base import SyncOptions
from ..ranks import Ranks, flatten, spread

LEAST_BYTES = 2**20  # of a weight: a smaller one is not worth a look at its rows
WORTH = 0.8  # of a weight's rows: with more of them it goes whole, without being gathered first


class Bucket(NamedTuple):
    """What a bucket of DDP's holds: parts of `buffer`, and large embeddings' by rows."""

    buffer: Tensor  # (n,)
    gradients: Mapping[Tensor, Tensor]  # by their parameters; parts of `buffer`
    rows: Sequence["Rows"]  # all that is in it beside

    def put_back(self) -> Tensor:
        """The bucket, when all that moves is the mean."""
        for one in self.rows:
            one.give_back()
        return self.buffer


class BucketHook:
    """Implemented by a file of modes/ or compression/: `start` makes a tensor the mean."""

    default_mb: float | None = 4.0  # of a bucket on gloo; None: DDP's own

    def __init__(self, model: nn.Module, ranks: Ranks, options: SyncOptions) -> None:
        """`model`: what DDP has wrapped; `ranks` those of its group."""
        self.ranks, self.options = ranks, options
        self.device = next(model.parameters()).device
        on_gloo = dist.get_backend(ranks.group) == "gloo"
        self._by_rows = set[Tensor](candidates(model) if options.sparse_rows and on_gloo else ())
        self.sends = True  # else a bucket is the mean as it is
        # Of this pass, on a GPU: the first and the last bucket were ready. Nothing waits for them.
        self.ready: list[torch.cuda.Event] = []

    def start(self, flat: Tensor) -> Future[Tensor]:
        """Begin to make `flat` (dense, contiguous) the mean over ranks, the same bits on each."""
        raise NotImplementedError

    def send(self, bucket: Bucket) -> Future[Tensor]:
        """Likewise a bucket; the future has its buffer."""
        if not bucket.rows:
            return self.start(bucket.buffer)
        moving = [*bucket.gradients.values(), *(one.moved for one in bucket.rows)]
        flat = flatten(moving) if len(moving) > 1 else moving[0].flatten()  # the same memory
        if not flat.numel():  # rows of an embedding that no rank has used
            return done_with(bucket.buffer)

        def put_back(done: Future[Tensor]) -> Tensor:
            if len(moving) > 1:
                spread(done.value(), moving)
            return bucket.put_back()

        return self.start(flat).then(put_back)

    def average(self, _: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """What DDP calls."""
        buffer = bucket.buffer()
        if not self.sends:
            return done_with(buffer)
        if bucket.index() == 0:
            self.ranks.ledger.step.clear()  # of the pass before, if nobody asked for it
        if buffer.is_cuda:
            self.ready = [*self.ready[:1], marked()]
        if buffer.is_sparse:  # as DDP by itself sends it, in every mode
            return summed(buffer.div_(self.ranks.world_size), self.ranks)
        if not buffer.numel():
            return done_with(buffer)
        gradients = dict(zip(bucket.parameters(), bucket.gradients(), strict=True))
        large = [gradients.pop(one) for one in list(gradients) if one in self._by_rows]
        rows = rows_in_use(large, self.ranks) if large else []
        numbers = torch.view_as_real(buffer).view(-1) if buffer.is_complex() else buffer
        sent = self.send(Bucket(numbers, gradients, rows))
        return sent if numbers is buffer else sent.then(lambda done: (done.value(), buffer)[1])

    def state(self) -> dict[str, Tensor]:
        """What this rank remembers from step to step, by name: a checkpoint keeps it."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned."""


def done_with(buffer: Tensor) -> Future[Tensor]:
    """There is nothing to send."""
    done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
    done.set_result(buffer)
    return done


def summed(tensor: Tensor, ranks: Ranks) -> Future[Tensor]:
    """Begin to add `tensor` up over the ranks, in place."""
    ranks.ledger.gradient("all_reduce", tensor._values() if tensor.is_sparse else tensor)
    work = dist.all_reduce(tensor, group=ranks.group, async_op=True)
    assert work is not None
    total: Future[Tensor] = work.get_future().then(lambda done: (done.value(), tensor)[1])
    return total


def marked() -> torch.cuda.Event:
    """A mark in the device's current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Lane:
    """A thread and a group other than DDP's: what is handed in (`submit`) goes one after the other,
    on every rank alike.

    Its group is made when it is first needed, where all ranks are together.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions, device: torch.device) -> None:
        """`device`: where what is handed in lies."""
        self._ranks, self._timeout_s = ranks, options.timeout_s
        first = (torch.cuda.set_device, (device,)) if device.type == "cuda" else ()
        self._thread = futures.ThreadPoolExecutor(1, "muster-sync", *first)
        self.submit = self._thread.submit
        # Let go of the group before the interpreter ends, which joins its threads: one that wants
        # the interpreter while that ends aborts the process.
        weakref.finalize(self, vars(self).clear)

    @cached_property
    def ranks(self) -> Ranks:
        """Those of the hook, through the group."""
        group = self._ranks.own_group(self._timeout_s)
        return replace(self._ranks, group=group, carries_gradients=True)

    def promise(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Have the thread do `work(*given)`; an error of it is that of the backward pass."""
        promised: Future[Any] = Future()
        self.submit(work, *given).add_done_callback(promised.set_result)

        # An error is raised here: as it is, DDP would take it for a tensor.
        return promised.then(lambda done: done.value().result())


def candidates(model: nn.Module) -> list[nn.Parameter]:
    """Trained weights that only `nn.Embedding` modules hold, and that are worth it.

    One that also is an output layer (tied) has a gradient in every row. One that does not lie row
    after row in memory goes whole as well.
    """
    held = {True: set[Tensor](), False: set[Tensor]()}  # by embeddings, and by others
    for module in model.modules():
        held[isinstance(module, nn.Embedding)].update(module.parameters(recurse=False))
    alone = held[True] - held[False]
    found = [one for one in model.parameters() if one in alone and one.requires_grad]
    return [one for one in found if one.nbytes >= LEAST_BYTES and one.is_contiguous()]


def rows_in_use(gradients: Sequence[Tensor], ranks: Ranks) -> "list[Rows]":
    """Of each gradient (rows, width) the rows that some rank has used; collective."""
    marks = ranks.all_reduce(torch.cat([touched(one) for one in gradients]), dist.ReduceOp.MAX)
    unions = marks.split([len(one) for one in gradients])
    return [Rows(one, union) for one, union in zip(gradients, unions, strict=True)]


def touched(gradient: Tensor) -> Tensor:
    """Not 0 for each row that is not all zero: uint8 (rows,), the largest byte of it."""
    # The bytes of a number are zero where the number is; their largest is found fastest of all.
    return gradient.view(torch.uint8).amax(dim=1)


class Rows:
    """One weight's gradient (rows, width) on its way: `moved` is its rows `union`, or all."""

    def __init__(self, gradient: Tensor, union: Tensor) -> None:
        """`union`: uint8 (rows,), not 0 where any rank has touched the row."""
        self._gradient = gradient
        self._rows = union.nonzero().flatten()
        is_whole = len(self._rows) > WORTH * len(union)
        self.moved = gradient if is_whole else gradient.index_select(0, self._rows)

    def give_back(self) -> None:
        """What has moved becomes the weight's gradient."""
        if self.moved is not self._gradient:
            self._gradient.index_copy_(0, self._rows, self.moved)
