"""The hooks that torch's DDP calls when a bucket of gradients is full, to average it over ranks.

Every rank's DDP calls the hook for its buckets in the same order, whichever becomes ready first. So
a hook sends and waits in the same order on all ranks. A future's callback runs as soon as the
future is done, so a callback computes, but neither sends nor waits. Work that must send again after
it has received something runs in a `BackgroundThread`, which has its own process group, and on a
GPU its own stream.

On a GPU, hooks send only through NCCL (`HookChoice.for_device`). There a future must name its
device (torch's `Future(devices=)`). A stream that waits for the future then waits for the stream in
which the future was completed. A future without devices, such as the one from `collect_all`, orders
nothing. So futures are created here, by `promise` and `all_done`.

DDP rebuilds its buckets after the first pass. So a hook looks up parameters in the bucket that it
is given, and remembers none.

In a large embedding only the rows that some rank has looked up have a gradient; only these are
sent. A batch of a few thousand tokens uses a small part of a vocabulary of 30,000 or more, and the
gradient of every other row is zero. So the ranks first exchange which rows they used: one byte for
each row, with the maximum taken over ranks. The union is the same on all ranks. All other rows are
zero on every rank, and so is their mean: nothing is approximated.

    gradient (rows, width)  --union-->  moved (used rows, width)  --mean-->  gradient (rows, width)

The used rows are read from the gradient itself, so they are right however the weight was used.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future, collect_all

from ..base import SyncOptions
from ..ranks import Ranks, backend_of, flatten, unflatten
from . import reducer

R = TypeVar("R")
LEAST_BYTES = 2**20  # of a weight: the rows of smaller weights are not examined
MOST_ROWS_SHARE = (
    0.8  # share of a weight's rows: if more are used, the whole weight is sent, without gathering
)


class BucketHook:
    """The base class of hooks in modes/ and compression/: `start` averages a tensor over ranks."""

    is_as_ddp = False  # whether it sends and averages like DDP without a hook
    default_mb: float | None = 4.0  # MiB of a bucket on gloo; None: DDP's default

    def __init__(self, model: nn.Module, ranks: Ranks, options: SyncOptions) -> None:
        """`model` is the model in DDP; `ranks` are the ranks of DDP's group."""
        self.ranks, self.options = ranks, options
        self.device = next(model.parameters()).device
        on_gloo = backend_of(self.device, ranks.group) == "gloo"
        self._by_rows = set[Tensor](candidates(model) if options.sparse_rows and on_gloo else ())
        self.sends = True  # if not, buckets count as averaged already
        self.joins_of: Callable[[], Any] = lambda: None  # the DDP whose `join()` counts
        self._scale = 1.0  # of this pass's gradients; see `scale`
        # On a GPU, for the trainer's records: when this pass's first and last buckets were ready.
        # Nothing waits for these events.
        self.is_timed = False
        self.ready: list[torch.cuda.Event] = []

    def start(self, flat: Tensor) -> Future[Tensor]:
        """Begin to average `flat` (dense, contiguous) over ranks, with the same bits on each."""
        raise NotImplementedError

    def average(self, _: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """The communication hook that DDP calls."""
        # detached: with create_graph, gradients are part of a graph, but DDP's collectives are not
        buffer = bucket.buffer().detach()
        if not self.sends:
            return completed_future(buffer)
        if bucket.index() == 0:
            self.ranks.ledger.step.clear()  # entries of the previous pass that nothing took
            self.ready = []  # a new list: the list of the last pass may still be unread
            self._scale = self.scale()
        if self.is_timed and buffer.is_cuda and (bucket.index() == 0 or bucket.is_last()):
            self.ready.append(marked())
        if self._scale != 1:
            buffer.mul_(self._scale)
        if buffer.is_sparse:  # sent as DDP itself sends it, in every mode
            return summed(buffer.div_(self.ranks.world_size), self.ranks)
        if not buffer.numel():
            return completed_future(buffer)
        return self.send(bucket)

    def send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Begin to average a bucket; the result of the future is its buffer."""
        buffer = bucket.buffer().detach()
        parts = [gradient.detach() for gradient in bucket.gradients()]
        gradients = dict(zip(bucket.parameters(), parts, strict=True))
        large = [gradients.pop(param) for param in list(gradients) if param in self._by_rows]
        if not large and buffer.is_complex():
            numbers = torch.view_as_real(buffer).view(-1)
            return self.start(numbers).then(lambda done: (done.value(), buffer)[1])
        if not large:
            return self.start(buffer)
        used = rows_in_use(large, self.ranks)
        moving = [*gradients.values(), *(rows.moved for rows in used)]
        flat = flatten(moving) if len(moving) > 1 else moving[0].flatten()  # the same memory
        if not flat.numel():  # only rows of an embedding that no rank has used
            return completed_future(buffer)

        def put_back(done: Future[Tensor]) -> Tensor:
            if len(moving) > 1:
                unflatten(done.value(), moving)
            for rows in used:
                rows.give_back()
            return buffer

        return self.start(flat).then(put_back)

    def scale(self) -> float:
        """Return the factor from the mean over all ranks to the mean that DDP computes; collective.

        Within `join(divide_by_initial_world_size=False)` DDP divides by the number of ranks that
        still have batches. The other ranks also call the hook, with zeros, outside of a backward
        pass.
        """
        model = self.joins_of()
        if model is None or not reducer.divides_by_joined(model):
            return 1.0
        is_joined = float(reducer.in_backward_pass())
        count = self.ranks.all_reduce(torch.tensor([is_joined], device=self.device))
        return self.ranks.world_size / count.item()

    def state(self) -> dict[str, Tensor]:
        """Return the state that this rank keeps between steps, by name, for a checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what `state` returned."""


def completed_future(buffer: Tensor) -> Future[Tensor]:
    """Return a future that is already done, when there is nothing to send."""
    done = new_future(buffer.device)
    done.set_result(buffer)
    return done


def summed(tensor: Tensor, ranks: Ranks) -> Future[Tensor]:
    """Begin to add up `tensor` over the ranks, in place."""
    ranks.ledger.gradient("all_reduce", tensor._values() if tensor.is_sparse else tensor)
    work = dist.all_reduce(tensor, group=ranks.group, async_op=True)
    assert work is not None
    return future_of_work(work, tensor)


def new_future(device: torch.device) -> Future[Any]:
    return Future(devices=[device]) if device.type == "cuda" else Future()


def promise(device: torch.device) -> tuple[Callable[..., None], Future[Any]]:
    """Return a function that makes a call, and a future of the call's result or error.

    On a GPU the call must return a tensor: waiting for the future then waits for its stream.
    """
    promised = new_future(device)
    errors: list[BaseException] = []

    def complete(call: Callable[..., Any], *given: Any) -> None:
        try:
            result = call(*given)
        except BaseException as error:  # noqa: BLE001 (whoever waits for the future raises it)
            errors.append(error)
            result = None
        promised.set_result(result)

    def result_of(done: Future[Any]) -> Any:
        # Raise the error here: DDP would take an exception object for a tensor.
        if errors:
            raise errors.pop()
        return done.value()

    return complete, promised.then(result_of)


def future_of_work(work: dist.Work, tensor: Tensor) -> Future[Tensor]:
    """Return a future of `tensor`, which the collective `work` writes."""
    return work.get_future().then(lambda done: (done.value(), tensor)[1])


def all_done(
    parts: Sequence[Future[Tensor]], whole: Tensor, stream: torch.cuda.Stream | None
) -> Future[Tensor]:
    """Return a future of `whole`, done when its `parts` are; on a GPU, `stream` waits for them."""
    complete, future = promise(whole.device)

    def end(done: Future[Any]) -> None:
        with in_stream(stream):
            complete(lambda: ([part.wait() for part in done.value()], whole)[1])

    collect_all(list(parts)).add_done_callback(end)
    return future


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Create a stream beside the one that computes; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def in_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def marked() -> torch.cuda.Event:
    """Record an event in the device's current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class BackgroundThread:
    """A thread with its own process group; it runs work in the order of submission, on every rank.

    The group is created at the first use, which all ranks reach together.

    On a GPU it has its own stream, so that computing does not wait for what the thread waits for.
    In this stream, submitted work begins after the work that the caller's stream had by then.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions, device: torch.device) -> None:
        """`device` is the device of the tensors in submitted work."""
        ranks.require_all()  # here, rather than in the first backward pass
        self._ranks, self._timeout_s, self._device = ranks, options.timeout_s, device
        self._stream = new_stream(device)
        first = (torch.cuda.set_device, (device,)) if device.type == "cuda" else ()
        self._thread = futures.ThreadPoolExecutor(1, "muster-sync", *first)
        # Release the group before the interpreter ends and joins its threads: a group's thread that
        # needs the interpreter at that time aborts the process.
        weakref.finalize(self, vars(self).clear)

    @cached_property
    def ranks(self) -> Ranks:
        """The hook's ranks, in this thread's group."""
        group = self._ranks.own_group(self._timeout_s)
        return replace(self._ranks, group=group, carries_gradients=True, in_background=True)

    def submit(self, work: Callable[..., R], *given: Any) -> futures.Future[R]:
        """Run `work(*given)` in the thread."""
        stream = self._stream
        if stream is None:
            return self._thread.submit(work, *given)
        ready = torch.cuda.current_stream(self._device).record_event()

        def run() -> R:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                return work(*given)

        return self._thread.submit(run)

    def promise(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        """Run `work(*given)` in the thread; an error in it is raised by the backward pass."""
        complete, future = promise(self._device)
        self.submit(complete, work, *given)
        return future


def candidates(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained weights that only `nn.Embedding` modules have and that are large enough.

    A weight that is also an output layer (tied) has a gradient in every row. Such a weight is sent
    whole, and so is a weight whose rows are not contiguous in memory.
    """
    held = {True: set[Tensor](), False: set[Tensor]()}  # held by embeddings, and by other modules
    for module in model.modules():
        held[isinstance(module, nn.Embedding)].update(module.parameters(recurse=False))
    alone = held[True] - held[False]
    params = [param for param in model.parameters() if param in alone and param.requires_grad]
    return [param for param in params if param.nbytes >= LEAST_BYTES and param.is_contiguous()]


def rows_in_use(gradients: Sequence[Tensor], ranks: Ranks) -> "list[Rows]":
    """Find, for each gradient (rows, width), the rows that some rank has used; collective."""
    marks = ranks.all_reduce(
        torch.cat([nonzero_rows(gradient) for gradient in gradients]), dist.ReduceOp.MAX
    )
    unions = marks.split([len(gradient) for gradient in gradients])
    return [Rows(gradient, union) for gradient, union in zip(gradients, unions, strict=True)]


def nonzero_rows(gradient: Tensor) -> Tensor:
    """Mark the rows that are not all zero: uint8 (rows,), the largest byte of each row."""
    # A number is zero if its bytes are; the maximum of the bytes is the fastest test.
    return gradient.view(torch.uint8).amax(dim=1)


class Rows:
    """One weight's gradient (rows, width) while it is sent: `moved` holds the used rows, or all."""

    def __init__(self, gradient: Tensor, union: Tensor) -> None:
        """`union` is uint8 (rows,), nonzero for each row that any rank has used."""
        self._gradient = gradient
        self._rows = union.nonzero().flatten()
        is_whole = len(self._rows) > MOST_ROWS_SHARE * len(union)
        self.moved = gradient if is_whole else gradient.index_select(0, self._rows)

    def give_back(self) -> None:
        """Write the averaged rows back into the weight's gradient."""
        if self.moved is not self._gradient:
            self._gradient.index_copy_(0, self._rows, self.moved)
