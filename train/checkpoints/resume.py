"""Find the newest checkpoint that is whole, on any of the hosts, and give it to all ranks."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from muster.errors import UsageError, refuse
from muster.run_files import CHECKPOINTS

from ..distributed import patience
from ..sync.ranks import Ranks
from . import storage
from .exchange import Files, gather, share
from .storage import Checkpoint, Damaged

AUTO = "auto"


def load(
    resume: str,
    folder: Path,
    ranks: Ranks,
    *,
    reads: bool,
    problems_of: Callable[[dict[str, Any]], Iterable[str]],
    tell: Callable[[str], None],
) -> tuple[Files, dict[str, Any]] | None:
    """What --resume names, on every rank; None where it is auto and there is nothing yet.

    `folder` is where this run's own checkpoints go. `reads`: whether this rank looks at its disk,
    which one rank of each file system does. The newest that is whole is used; what is damaged is
    named and passed over. `problems_of` its state are why this run cannot go on from it.

    Raises:
        UsageError: there is none, or there are problems.
    """
    place = folder if resume == AUTO else Path(resume).expanduser()
    found, notes = _newest(candidates(place)) if reads else (None, [])
    newest_here = (found[0].run, found[0].step) if found else None
    patience.wait_for_all(ranks.world_size)  # one disk may be far slower than another
    newest_of, notes_of = zip(*gather(ranks, (newest_here, notes)), strict=True)
    for note in dict.fromkeys(note for notes in notes_of for note in notes):
        tell(note)
    newest = max(filter(None, newest_of), default=None)
    if newest is None:
        damaged = any(notes_of)
        if resume == AUTO and not damaged:
            tell(f"no checkpoint in {place} yet: starting from the beginning")
            return None
        raise UsageError(
            f"--resume {resume}: {'no whole' if damaged else 'no'} checkpoint in {place}"
        )
    source = newest_of.index(newest)
    own: tuple[Files, dict[str, Any]] = ({}, {})
    if ranks.rank == source and found is not None:
        files, state = found[1]
        is_here = found[0].path.parent.resolve() == folder.resolve()
        own = files, {**state, "origin": found[0].origin if is_here else None}
    files, state = share(ranks, source, own)
    refuse(problems_of(state))
    tell(f"going on from step {state['step']} ({place})")
    return files, state


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


def _newest(
    found: list[Checkpoint],
) -> tuple[tuple[Checkpoint, tuple[Files, dict[str, Any]]] | None, list[str]]:
    """The first of `found` that is whole, with what it holds, and a line for each that is not."""
    notes: list[str] = []
    for one in found:
        try:
            return (one, storage.read(one)), notes
        except Damaged as error:
            notes.append(f"{error}; trying the one before it")
    return None, notes
