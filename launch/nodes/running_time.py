"""A clock that stands still while this process is stopped; and what the process waits for.

A scheduler suspends a job, somebody sends SIGSTOP, a laptop sleeps. Until it continues, the process
hears nothing, and its workers do nothing. It must not hold that time against anybody: each limit
continues from where it was.

How it works: while a process runs, something looks at the clock every second, as the thread of
`channel.Heartbeat` does, or a loop that waits. A much longer time between two looks means that the
whole process was stopped. So use this clock only there: else a command that is waited for looks
like a stop.
"""

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.deadlines import ITSELF_STOPPED_AFTER_S, STOP_COUNTS_AS_S
from muster.checkout import CHECKOUT


class RunningClock:
    """Seconds in which the process was running, by `now`; any thread may ask."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._lock = now, threading.Lock()
        self._looked, self._running_s = now(), 0.0

    def __call__(self) -> float:
        with self._lock:
            now = self._now()
            passed_s = now - self._looked
            self._looked = now
            self._running_s += passed_s if passed_s <= ITSELF_STOPPED_AFTER_S else STOP_COUNTS_AS_S
            return self._running_s


running_s = RunningClock()
_waits: list[tuple[str, float]] = []  # what for, and since when; the innermost last


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Note what the main thread waits for, such as a file's path: a disk can take very long."""
    _waits.append((what, running_s()))
    try:
        yield
    finally:
        _waits.pop()


def noted_wait() -> tuple[str, float] | None:
    """What `waiting_for` has noted last, and since when."""
    return next(iter(_waits[-1:]), None)


def line_of_main_thread() -> str:
    """The innermost line of our code in it: whatever it waits for, it does so there."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for each, line in traceback.walk_stack(frame):
        file = Path(each.f_code.co_filename)
        if file.is_relative_to(CHECKOUT):
            return f"{each.f_code.co_name} ({file.relative_to(CHECKOUT)}, line {line})"
    return "nothing that is known"
