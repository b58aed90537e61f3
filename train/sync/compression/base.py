"""A compressor makes gradients approximately their mean over ranks; this is what one must do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..base import SyncOptions, load_plugin
from ..buckets.layout import flatten, spread
from ..ledger import Collective
from ..ranks import Ranks


class Compressor(ABC):
    """Implemented by each file beside this one; its `build(ranks, options)` makes one.

    What it leaves out of one step it may remember and add to the next one's gradients (error
    feedback), so that nothing is lost for good, only late.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        self.ranks, self.options = ranks, options
        self._remembered: dict[str, Tensor] = {}

    @abstractmethod
    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        """Make `gradients` about their mean over ranks, in place, the same bits on every rank.

        They are one bucket: dense, of one dtype. `key` says which; on all ranks alike it comes
        with the same shapes, or what was remembered of it is forgotten.
        """

    def hook(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Average a bucket of torch's DDP, which calls this in its backward pass.

        DDP goes through its buckets in the same order on every rank, so that what `average` sends
        has been waited for before the next one's.
        """
        self.average(bucket.index(), bucket.gradients())
        buffer = bucket.buffer()
        done: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        done.set_result(buffer)
        return done

    def remember(self, key: int, what: str, tensor: Tensor) -> None:
        """Keep `tensor` until the bucket `key` comes again."""
        self._remembered[self._name(key, what)] = tensor

    def recall(self, key: int, what: str, like: Tensor) -> Tensor | None:
        """What was kept, if it has the form of `like`."""
        found = self._remembered.get(self._name(key, what))
        if found is None or found.shape != like.shape:
            return None
        return found.to(device=like.device, dtype=like.dtype)

    def with_error(self, key: int, flat: Tensor, what: str = "error") -> Tensor:
        """`flat` and what earlier steps have left out of it."""
        error = self.recall(key, what, flat)
        return flat if error is None else flat + error

    def state(self) -> dict[str, Tensor]:
        """What this rank remembers, by name: a checkpoint keeps it."""
        return dict(self._remembered)

    def restore(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Go on from what `state` returned, with gradients on `device`; what another way to
        compress kept is left out."""
        own = f"{self.options.compress}/"
        self._remembered = {name: one for name, one in state.items() if name.startswith(own)}

    def all_reduce(self, tensor: Tensor) -> None:
        """Make `tensor` the sum over ranks."""
        dist.all_reduce(tensor)
        self.ranks.ledger.gradient("all_reduce", tensor)

    def all_gather(self, row: Tensor) -> Tensor:
        """The `row` (n,) of every rank, as (world_size, n)."""
        rows = row.new_empty(self.ranks.world_size, len(row))
        dist.all_gather_single(rows.view(-1), row)
        self.ranks.ledger.gradient("all_gather", row)
        return rows

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Row r of every rank, on rank r: both (world_size, n)."""
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows)
        self.ranks.ledger.gradient("all_to_all", rows)
        return received

    def _name(self, key: int, what: str) -> str:
        return f"{self.options.compress}/{key}/{what}"


class Cast(Compressor):
    """Gradients travel as numbers of fewer bits; there is nothing to remember."""

    dtype: torch.dtype
    # torch's own for DDP: it casts before it divides, and the next bucket need not wait for it
    torch_hook: ClassVar[Callable[[dist.ProcessGroup, dist.GradBucket], Future[Tensor]]]

    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        # divided first, so that the sum does not leave the small type's range
        small = (flatten(gradients) / self.ranks.world_size).to(self.dtype)
        self.all_reduce(small)
        spread(small, gradients)

    def hook(self, bucket: dist.GradBucket) -> Future[Tensor]:
        self.ranks.ledger.add(all_reduced(bucket.buffer().numel(), self.dtype))
        group = dist.group.WORLD
        assert group is not None
        return type(self).torch_hook(group, bucket)


def all_reduced(numel: int, dtype: torch.dtype) -> Collective:
    """What the ledger notes of an all_reduce by torch itself."""
    name = str(dtype).removeprefix("torch.")
    return Collective("all_reduce", (numel,), name, numel * dtype.itemsize)


def load(ranks: Ranks, options: SyncOptions) -> Compressor | None:
    """What `options.compress` names; None for none.

    Raises:
        UsageError: there is no such file; the message lists those there are.
    """
    if options.compress == "none":
        return None
    found: Compressor = load_plugin("compression", options.compress)(ranks, options)
    return found
