"""Run cells as processes, a few at a time, which stop cleanly when all are to stop."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from configs.plugins import REPOSITORY
from launch.agent.processes.die_with_parent import die_with_parent
from launch.agent.processes.process_tree import on_stop
from launch.studies.progress_record import Note
from muster.errors import STOPPED
from muster.orderly_stop import STOP_SIGNALS

POLL_S = 0.1

# Exit codes of a run that was stopped, cleanly or by a signal.
STOPS = (STOPPED, 130, 143, -signal.SIGINT, -signal.SIGTERM)


class Processes:
    """The running processes; a stop signal is passed on, so that each ends its run cleanly."""

    def __init__(self) -> None:
        self.stopped_by: int | None = None  # the first signal
        self.running: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        words: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path = REPOSITORY,
    ) -> "subprocess.Popen[bytes]":
        """Start the command `words`, with its output in `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # this process passes a terminal's Ctrl-C on, once
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # there are no threads here
            )
        self.running.append(process)
        if self.stopped_by is not None:  # a signal came during the start
            process.send_signal(self.stopped_by)
        return process

    def pass_on(self, number: int, _: FrameType | None) -> None:
        """The handler of a stop signal."""
        self.stopped_by = self.stopped_by or number
        for process in self.running:
            process.send_signal(number)


@contextmanager
def processes() -> Iterator[Processes]:
    """A context in which stop signals go to the processes that are started through it."""
    found = Processes()
    before = [(number, signal.getsignal(number)) for number in STOP_SIGNALS]
    on_stop(found.pass_on)
    try:
        yield found
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@dataclass(frozen=True)
class Work:
    """One cell to run."""

    note: Note
    words: Callable[[int], Sequence[str]]  # its command, given its place among simultaneous runs
    log: Path
    ended: Callable[[int], None]  # records the result in the note, given the exit code
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = REPOSITORY
    cancelled: Path | None = None  # if this file exists, it must not begin


def run_all(
    works: Sequence[Work],
    at_once: int,
    tell: Callable[[Note], None],
) -> tuple[dict[str, int], int | None]:
    """Run them in their order, at most `at_once` at a time.

    `tell` is called with each note that has changed. Returns the exit code of each started one, by
    its id; and the signal that ended it all, if any: then nothing more is started, and every run
    has ended cleanly.
    """
    waiting, places = list(works), list(range(at_once))
    codes: dict[str, int] = {}
    with processes() as found:
        started: dict[int, tuple[Work, subprocess.Popen[bytes], int, float]] = {}
        while started or (waiting and found.stopped_by is None):
            while waiting and places and found.stopped_by is None:
                work = waiting.pop(0)
                if work.cancelled is not None and work.cancelled.exists():
                    work.note.state, work.note.message = "stopped", "cancelled before it began"
                    tell(work.note)
                    continue
                place = places.pop(0)
                work.note.state, work.note.message = "running", ""
                tell(work.note)
                process = found.start(work.words(place), work.log, work.env, work.cwd)
                started[process.pid] = (work, process, place, time.monotonic())
            for pid, (work, process, place, since_s) in list(started.items()):
                if (code := process.poll()) is None:
                    continue
                del started[pid]
                found.running.remove(process)
                places = sorted([*places, place])
                codes[work.note.id], work.note.seconds = code, time.monotonic() - since_s
                work.ended(code)
                tell(work.note)
            time.sleep(POLL_S)
    return codes, found.stopped_by


def run(words: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Run the command `words` to its end, with its output in `log`; return its exit code."""
    with processes() as found:
        return found.start(words, log, env).wait()


def last_line(text: str) -> str:
    """The last line that is not blank; empty if there is none."""
    return (text.strip().splitlines() or [""])[-1]


def last_message(log: Path) -> str:
    """The last line of a log, without "error:" before it; empty if there is none."""
    return last_line(log.read_text(encoding="utf-8", errors="replace")).removeprefix("error: ")


def _end_with_parent() -> None:
    die_with_parent(signal.SIGTERM)
