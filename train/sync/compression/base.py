"""A compressor makes gradients approximately their mean over ranks; this is what one must do."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from configs import plugins
from configs.settings.train import TrainConfig
from train.distributed.world import World
from train.sync.buckets.layout import flatten, spread


class Compressor(ABC):
    """Implemented by each file beside this one; its `build(world, config, group)` makes one.

    What it leaves out of one step it may remember and add to the next one's gradients (error
    feedback), so that nothing is lost for good, only late.
    """

    def __init__(
        self, world: World, config: TrainConfig, group: dist.ProcessGroup | None = None
    ) -> None:
        self.world, self.config, self.group = world, config, group
        self._remembered: dict[str, Tensor] = {}

    @abstractmethod
    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        """Make `gradients` about their mean over ranks, in place, the same bits on every rank.

        They are one bucket: dense, of one dtype. `key` says which; on all ranks alike it comes
        with the same shapes, or what was remembered of it is forgotten.
        """

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

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` returned; what another way to compress kept is left out."""
        own = f"{self.config.compress}/"
        self._remembered = {name: one for name, one in state.items() if name.startswith(own)}

    def all_reduce(self, tensor: Tensor) -> None:
        """Make `tensor` the sum over ranks."""
        dist.all_reduce(tensor, group=self.group)
        self.world.ledger.gradient("all_reduce", tensor)

    def all_gather(self, row: Tensor) -> Tensor:
        """The `row` (n,) of every rank, as (world_size, n)."""
        rows = row.new_empty(self.world.world_size, len(row))
        dist.all_gather_single(rows.view(-1), row, group=self.group)
        self.world.ledger.gradient("all_gather", row)
        return rows

    def all_to_all(self, rows: Tensor) -> Tensor:
        """Row r of every rank, on rank r: both (world_size, n)."""
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows, group=self.group)
        self.world.ledger.gradient("all_to_all", rows)
        return received

    def _name(self, key: int, what: str) -> str:
        return f"{self.config.compress}/{key}/{what}"


class Cast(Compressor):
    """Gradients travel as numbers of fewer bits; there is nothing to remember."""

    dtype: torch.dtype

    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        # divided first, so that the sum does not leave the small type's range
        small = (flatten(gradients) / self.world.world_size).to(self.dtype)
        self.all_reduce(small)
        spread(small, gradients)


def load(
    world: World, config: TrainConfig, group: dist.ProcessGroup | None = None
) -> Compressor | None:
    """What --compress names; None for none."""
    if config.compress == "none":
        return None
    found: Compressor = plugins.load("train.sync.compression", config.compress)(
        world, config, group
    )
    return found
