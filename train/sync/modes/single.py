"""One process alone: its gradient is the mean already."""

from collections.abc import Sequence

from torch import nn

from ..base import GradSync


class Single(GradSync):
    """The plain training that every other mode must equal."""

    hook_class = None  # for DDP of a single process

    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        pass


build = Single
