"""Average gradients at rank 0: it gathers them from all ranks, and scatters their mean.

Every bucket crosses the root's link N - 1 times in each direction, so that link is the bottleneck,
and both of its directions are kept busy: while the mean of one bucket is sent out, the next one
comes in. The mean is computed once, so all ranks hold the same bits.

    root's thread     gather 0   gather 1, mean 0, scatter 0   gather 2, mean 1, scatter 1   ...
    the other ranks   gather 0, scatter 0   gather 1, scatter 1   gather 2, scatter 2        ...

Collectives of one group are matched by their order, and the two sides above have different ones. So
gathers and scatters have a group each: within either group the order is that of the buckets, on
every rank. The root's part runs in a thread of its own, since `start` must return to the backward
pass; its queue keeps the order in which buckets were started. Tensors: a bucket is (n,) on each
rank, the root gathers (world_size, n), and the mean over dimension 0 goes back into (n,).
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..buckets.bucketed_sync import BucketSync, Each, Pending

ROOT = 0


class GatherScatter(BucketSync):
    """Rank 0 receives and sends N-1 times the gradients' bytes; the others once each way."""

    overlaps = True
    default_mb = 1.0

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.ranks.world_size > 1:
            # One for each direction: the scatter of a bucket does not wait for the gather of the
            # next one, nor for what else is sent during the backward pass.
            timeout = timedelta(seconds=self.options.timeout_s)
            self._up = dist.new_group(timeout=timeout)
            self._down = dist.new_group(timeout=timeout)
            self._root = Root(self._up, self._down, self.ranks.world_size)
        return super().wrap(model)

    def start(self, tensor: Tensor) -> Pending:
        """In pieces of a bucket: while one comes in, the one before goes out."""
        pieces = self.pieces(tensor)
        if len(pieces) == 1:
            return self._start(tensor)
        return Each([self._start(piece) for piece in pieces])

    def _start(self, tensor: Tensor) -> Pending:
        self.note("gather", tensor)
        self.note("scatter", tensor)
        if self.ranks.rank == ROOT:
            return self._root.start(tensor)
        sent = dist.gather(tensor, None, dst=ROOT, group=self._up, async_op=True)
        # Into the same memory: the root scatters after it has all that was gathered.
        came = dist.scatter(tensor, None, src=ROOT, group=self._down, async_op=True)
        return Each([sent, came])


class Root:
    """Serves buckets in their order, in a thread of its own; two at a time are in its memory."""

    def __init__(self, up: dist.ProcessGroup, down: dist.ProcessGroup, world_size: int) -> None:
        self._up, self._down, self._world_size = up, down, world_size
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gather_scatter")
        self._memory: dict[tuple[bool, torch.dtype], Tensor] = {}
        self._turn = False
        self._coming: Coming | None = None

    def start(self, tensor: Tensor) -> Pending:
        coming = Coming(tensor)
        self._thread.submit(self._take_in, coming)
        return Served(coming, self.flush)

    def flush(self) -> None:
        """No further bucket comes for now: send out the last one.

        Without this the last bucket of a step would wait for one of the next step to push it out,
        and that one's gradient for the parameters that depend on it.
        """
        self._thread.submit(self._send_out)

    def _take_in(self, coming: "Coming") -> None:
        tensor = coming.tensor
        try:
            if tensor.is_cuda:
                torch.cuda.set_device(tensor.device)
            coming.parts = self._room(tensor)
            coming.work = dist.gather(
                tensor, list(coming.parts), dst=ROOT, group=self._up, async_op=True
            )
        except Exception as error:  # noqa: BLE001 (whoever waits for it is told)
            coming.sent.set_exception(error)
            return
        # The one before, while this one comes in. Were its scatter called before this gather, the
        # link would have nothing to receive while it sends.
        self._send_out()
        self._coming = coming

    def _send_out(self) -> None:
        coming, self._coming = self._coming, None
        if coming is None:
            return
        try:
            coming.work.wait()
            torch.mean(coming.parts, dim=0, out=coming.tensor)
            every = [coming.tensor] * self._world_size
            sent = dist.scatter(coming.tensor, every, src=ROOT, group=self._down, async_op=True)
            coming.sent.set_result(sent)
        except Exception as error:  # noqa: BLE001 (likewise)
            coming.sent.set_exception(error)

    def _room(self, tensor: Tensor) -> Tensor:
        """Memory for that tensor of every rank, other than that of the one before."""
        self._turn = not self._turn
        key, needed = (self._turn, tensor.dtype), tensor.numel() * self._world_size
        room = self._memory.get(key)
        if room is None or len(room) < needed:
            room = self._memory[key] = tensor.new_empty(needed)
        return room[:needed].view(self._world_size, *tensor.shape)


class Coming:
    """A bucket on its way to the root."""

    work: Pending
    parts: Tensor  # (world_size, n): that bucket of every rank

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor  # (n,)
        self.sent: Future[Any] = Future()  # the work that sends its mean


class Served:
    """A bucket of the root's, from its start to when all ranks have the mean."""

    def __init__(self, coming: Coming, flush: Callable[[], None]) -> None:
        self._coming, self._flush = coming, flush

    def wait(self) -> None:
        self._flush()
        self._coming.sent.result().wait()


build = GatherScatter
