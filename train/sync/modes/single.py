"""One process alone: its gradient is the mean already."""

from ..base import GradSync


class Single(GradSync):
    """The plain training that every other mode must equal."""

    hook_class = None  # for DDP of a single process


build = Single
