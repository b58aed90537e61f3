"""Average gradients at rank 0: it gathers them from all ranks, and scatters their mean.

Every bucket crosses the root's link N - 1 times in each direction, so that link is the bottleneck,
and both of its directions are kept busy: while the mean of one piece is sent out, the next one
comes in. The mean is computed once, so all ranks hold the same bits.

    root's thread     gather 0   gather 1, mean 0, scatter 0   gather 2, mean 1, scatter 1   ...
    the other ranks   gather 0, scatter 0   gather 1, scatter 1   gather 2, scatter 2        ...

Collectives of one group are matched by their order, and the two sides above have different ones. So
gathers and scatters have a group each: within either group the order is that of the buckets, on
every rank. Tensors: a piece is (n,) on each rank, the root gathers (world_size, n), and the mean
over dimension 0 goes back into (n,).
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from ..base import MIB
from ..ddp.hooks import ThreadedHook, value_or_error
from ..ddp.torch_ddp import DdpSync
from ..ranks import Ranks

ROOT = 0


class GatherScatterHook(ThreadedHook):
    """Rank 0 receives and sends N-1 times the gradients' bytes; the others once each way."""

    default_mb = 1.0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._memory: dict[tuple[bool, torch.dtype], Tensor] = {}
        self._turn = False
        # Of the root, in this pass: the piece that comes in, what was sent out, who waits for it.
        self._coming: tuple[Any, Tensor, Tensor] | None = None
        self._sent: list[Any] = []
        self._waiting: list[tuple[Future[Any], Tensor]] = []

    @cached_property
    def down(self) -> dist.ProcessGroup:
        """For scatters; `group` is for gathers."""
        return self.ranks.own_group(self.options.timeout_s)

    def start(self, flat: Tensor) -> Future[Tensor]:
        for operation in ("gather", "scatter"):
            self.ranks.ledger.gradient(operation, flat)
        up, down = self.group, self.down
        if self.ranks.rank == ROOT:
            promised: Future[Any] = Future()
            self._thread.submit(self._serve, flat, promised)
            return promised.then(value_or_error)
        futures = []
        for piece in self._pieces(flat):
            sent = dist.gather(piece, None, group_dst=ROOT, group=up, async_op=True)
            # Into the same memory: the root scatters after it has all that was gathered.
            came = dist.scatter(piece, None, group_src=ROOT, group=down, async_op=True)
            futures += [work.get_future() for work in (sent, came)]
        return collect_all(futures).then(
            lambda done: ([one.value() for one in done.value()], flat)[1]
        )

    def _pieces(self, flat: Tensor) -> Sequence[Tensor]:
        """Of a bucket's size: while one comes in, the one before goes out."""
        size = self.options.bucket_mb
        values = int((self.default_mb if size is None else size) * MIB) // flat.itemsize
        return [flat] if values < 1 else flat.split(values)

    def finish(self) -> None:
        if self.ranks.rank == ROOT:
            self._thread.submit(self._flush)

    def _serve(self, flat: Tensor, promised: Future[Any]) -> None:
        """The root's part, in its thread."""
        self._waiting.append((promised, flat))
        try:
            if flat.is_cuda:
                torch.cuda.set_device(flat.device)
            for piece in self._pieces(flat):
                parts = self._room(piece)
                work = dist.gather(
                    piece, list(parts), group_dst=ROOT, group=self.group, async_op=True
                )
                # The one before, while this one comes in. Were its scatter called before this
                # gather, the link would have nothing to receive while it sends.
                self._send_out()
                self._coming = work, parts, piece
        except Exception as error:  # noqa: BLE001 (whoever waits for it is told)
            self._end(error)

    def _flush(self) -> None:
        """No further bucket comes in this pass: send out the last one, and wait for all."""
        try:
            self._send_out()
            for work in self._sent:
                work.wait()
            self._end(None)
        except Exception as error:  # noqa: BLE001 (likewise)
            self._end(error)

    def _send_out(self) -> None:
        if self._coming is None:
            return
        (work, parts, piece), self._coming = self._coming, None
        work.wait()
        torch.mean(parts, dim=0, out=piece)
        every = [piece] * self.ranks.world_size
        self._sent.append(
            dist.scatter(piece, every, group_src=ROOT, group=self.down, async_op=True)
        )

    def _end(self, error: Exception | None) -> None:
        waiting, self._waiting, self._sent, self._coming = self._waiting, [], [], None
        for promised, flat in waiting:
            promised.set_result(flat if error is None else error)

    def _room(self, tensor: Tensor) -> Tensor:
        """Memory for that tensor of every rank, other than that of the one before."""
        self._turn = not self._turn
        key, needed = (self._turn, tensor.dtype), tensor.numel() * self.ranks.world_size
        room = self._memory.get(key)
        if room is None or len(room) < needed:
            room = self._memory[key] = tensor.new_empty(needed)
        return room[:needed].view(self.ranks.world_size, *tensor.shape)


class GatherScatter(DdpSync):
    """The trainer's mode; `average` is what its loop after the backward pass does."""

    hook_class = GatherScatterHook

    @staticmethod
    def average(tensor: Tensor, ranks: Ranks) -> None:
        parts = [torch.empty_like(tensor) for _ in range(ranks.world_size)]
        is_root = ranks.rank == ROOT
        ranks.ledger.gradient("gather", tensor)
        dist.gather(tensor, parts if is_root else None, dst=ROOT)
        mean = torch.stack(parts).mean(0) if is_root else tensor
        ranks.ledger.gradient("scatter", tensor)
        dist.scatter(tensor, [mean] * ranks.world_size if is_root else None, src=ROOT)


build = GatherScatter
