"""Runs commands, a few at a time, that end in order when all are to end."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launch.agent.processes.die_with_parent import die_with_parent
from launch.agent.processes.process_tree import on_stop
from muster.orderly_stop import STOP_SIGNALS

POLL_S = 0.1


@dataclass(frozen=True)
class Work:
    """One command that is to be run."""

    log: Path  # of its output
    begin: Callable[[int], Sequence[str]]  # its words, by its place among those at a time, if any
    ended: Callable[[int, float], None]  # heeds its exit code, and its seconds


def run_all(works: Iterable[Work], at_once: int = 1) -> int | None:
    """Run them in their order, at most `at_once` at a time; the signal that ended it all, if any.

    Signals to stop are passed on, as only the commands can end their runs in order; and nothing
    more is started.
    """
    waiting, places, signals, passed_on = list(works), list(range(at_once)), list[int](), 0
    started: dict[int, tuple[Work, subprocess.Popen[bytes], float]] = {}
    before = [(number, signal.getsignal(number)) for number in STOP_SIGNALS]
    on_stop(lambda number, _: signals.append(number))
    try:
        while started or (waiting and not signals):
            while waiting and places and not signals:
                work = waiting.pop(0)
                if words := work.begin(places[0]):
                    started[places.pop(0)] = (work, _start(work, words), time.monotonic())
            for number in signals[passed_on:]:
                passed_on += 1
                for _, process, _ in started.values():
                    process.send_signal(number)
            for place, (work, process, since_s) in list(started.items()):
                if (code := process.poll()) is not None:
                    del started[place]
                    places = sorted([*places, place])
                    work.ended(code, time.monotonic() - since_s)
            time.sleep(POLL_S)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    return signals[0] if signals else None


def _start(work: Work, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    work.log.parent.mkdir(parents=True, exist_ok=True)
    with work.log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # this process passes a terminal's Ctrl-C on, once
            preexec_fn=partial(die_with_parent, signal.SIGTERM),  # noqa: PLW1509  # no threads here
        )
