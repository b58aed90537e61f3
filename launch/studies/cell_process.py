"""A run of a study or sweep as a process of its own, that ends in order when all are to end."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from configs.plugins import REPOSITORY
from launch.agent.processes import process_tree
from launch.runs.signals import STOP_SIGNALS, on_stop
from muster.errors import STOPPED

# Exit codes of a run that was stopped, in order or by a signal.
STOPS = (STOPPED, 130, 143, -signal.SIGINT, -signal.SIGTERM)


class Processes:
    """Those that run now; a signal to stop is passed on: only they can end their runs in order."""

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
                process_group=0,  # a terminal's Ctrl-C comes from here, once
                preexec_fn=_end_with_parent,  # noqa: PLW1509  # there are no threads here
            )
        self.running.append(process)
        if self.stopped_by is not None:  # while it was being started
            process.send_signal(self.stopped_by)
        return process

    def pass_on(self, number: int, _: FrameType | None) -> None:
        """The handler of a signal to stop."""
        self.stopped_by = self.stopped_by or number
        for process in self.running:
            process.send_signal(number)


@contextmanager
def processes() -> Iterator[Processes]:
    """Inside it, signals to stop go to the processes that are started through it."""
    found = Processes()
    before = [(number, signal.getsignal(number)) for number in STOP_SIGNALS]
    on_stop(found.pass_on)
    try:
        yield found
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def run(words: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Run the command `words` to its end, with its output in `log`; its exit code."""
    with processes() as found:
        return found.start(words, log, env).wait()


def last_line(text: str) -> str:
    """The last line that is not blank; empty if there is none."""
    return (text.strip().splitlines() or [""])[-1]


def last_message(log: Path) -> str:
    """The last line of a log, without "error:" before it; empty if there is none."""
    return last_line(log.read_text(encoding="utf-8", errors="replace")).removeprefix("error: ")


def _end_with_parent() -> None:
    process_tree.die_with_parent(signal.SIGTERM)
