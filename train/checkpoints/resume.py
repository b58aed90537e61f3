"""Find the newest checkpoint that is whole where a run is to go on from."""

from pathlib import Path
from typing import Any

from muster.run_files import CHECKPOINTS

from . import storage
from .storage import Checkpoint, Damaged


def candidates(place: Path) -> list[Checkpoint]:
    """The checkpoints that `place` stands for, the newest first.

    It may be one of them (then older ones beside it follow), the folder of several, or a run's. Of
    several runs that wrote into one folder, the last one's count, and what it had gone on from.
    """
    if storage.is_finished(place):
        beside = storage.found(place.parent)
        names = [one.path.name for one in beside]
        own = beside[names.index(place.name) :] if place.name in names else [Checkpoint(0, place)]
        return storage.line(own)
    return storage.line(storage.found(place) or storage.found(CHECKPOINTS.path(place)))


def newest(
    place: Path,
) -> tuple[tuple[Checkpoint, dict[str, Any], dict[str, Any]] | None, list[str]]:
    """The newest of `place` that is whole, its files and state; and a line for each that is not."""
    notes: list[str] = []
    for one in candidates(place):
        try:
            return (one, *storage.read(one)), notes
        except Damaged as error:
            notes.append(f"{error}; trying the one before it")
    return None, notes
