"""Runs cells, a few at the same time; one that fails does not stop the rest."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from configs.plugins import REPOSITORY
from launch.studies import cell_process
from launch.studies.progress_record import Note

POLL_S = 0.1


@dataclass(frozen=True)
class Work:
    """One cell that is to be run."""

    note: Note
    words: Callable[[int], Sequence[str]]  # its command, given its place among those at a time
    log: Path
    ended: Callable[[int], None]  # has the note say what came of it, given the exit code
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = REPOSITORY
    cancelled: Path | None = None  # a file by which somebody says that it need not begin


def run_all(
    works: Sequence[Work],
    at_once: int,
    tell: Callable[[Note], None],
    redraw: Callable[[], None] = lambda: None,
) -> tuple[dict[str, int], int | None]:
    """Run them in their order, at most `at_once` at a time.

    `tell` is called with each note that has changed, and `redraw` several times a second. Returns
    the exit code of each that was started, by its id; and the signal that ended it all, if any:
    then nothing more is started, and every run has ended in order.
    """
    waiting, places = list(works), list(range(at_once))
    codes: dict[str, int] = {}
    with cell_process.processes() as processes:
        started: dict[int, tuple[Work, subprocess.Popen[bytes], int, float]] = {}
        while started or (waiting and processes.stopped_by is None):
            while waiting and places and processes.stopped_by is None:
                work = waiting.pop(0)
                if work.cancelled is not None and work.cancelled.exists():
                    work.note.state, work.note.message = "stopped", "cancelled before it began"
                    tell(work.note)
                    continue
                place = places.pop(0)
                work.note.state, work.note.message = "running", ""
                tell(work.note)
                process = processes.start(work.words(place), work.log, work.env, work.cwd)
                started[process.pid] = (work, process, place, time.monotonic())
            for pid, (work, process, place, since_s) in list(started.items()):
                if (code := process.poll()) is None:
                    work.note.seconds = time.monotonic() - since_s
                    continue
                del started[pid]
                processes.running.remove(process)
                places = sorted([*places, place])
                codes[work.note.id], work.note.seconds = code, time.monotonic() - since_s
                work.ended(code)
                tell(work.note)
            redraw()
            time.sleep(POLL_S)
    return codes, processes.stopped_by
