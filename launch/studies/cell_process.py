"""A run of a study as a process of its own, that ends in order when the study is to end."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.plugins import REPOSITORY
from muster.errors import STOPPED

# Exit codes of a run that was stopped, in order or by a signal: the study ends with it.
STOPS = (STOPPED, 130, 143, -signal.SIGINT, -signal.SIGTERM)


def run(words: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Run the command `words`, with its output in `log`; its exit code."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            words,
            cwd=REPOSITORY,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        return _wait(process)


def last_line(text: str) -> str:
    """The last line that is not blank; empty if there is none."""
    return (text.strip().splitlines() or [""])[-1]


def last_message(log: Path) -> str:
    """The last line of a log, without "error:" before it; empty if there is none."""
    return last_line(log.read_text(encoding="utf-8")).removeprefix("error: ")


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Its exit code. A signal to stop is passed on: only the process can end its run in order."""

    def passed_on(number: int, _: object) -> None:
        if number != signal.SIGINT:  # a terminal has sent that one to both
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, passed_on) for number in numbers]
    try:
        return process.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
