"""A clock that stands still while this process is stopped.

A scheduler suspends a job, somebody sends SIGSTOP, a virtual machine is moved. Until it continues,
the process hears nothing, and its workers do nothing. It must not hold that time against anybody:
each limit continues from where it was.

How it works: while a process runs, the thread of `channel.Heartbeat` looks at this clock every
second. A much longer time between two looks means that the whole process was stopped. So use this
clock only where there is a heartbeat: else a command that is waited for looks like a stop.
"""

import threading
import time
from collections.abc import Callable

from launch.deadlines import ITSELF_STOPPED_AFTER_S, STOP_COUNTS_AS_S


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
