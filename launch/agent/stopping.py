"""Workers are asked to stop, and get the time to end by themselves.

How it works: a worker that can stop in order makes a file named by its pid. Whoever has the run
stop writes the reason into each of these files first, and then sends SIGTERM to these workers
alone: torchrun would answer a SIGTERM of its own by ending them. They agree on the step among
themselves. A worker that has made no file yet is not asked, and is ended with the others.

Where there is no such file at all, the program is one that says nothing of stopping. It may still
catch SIGTERM: torchrun gets the signal, passes it on, and waits for it as long as is allowed here.
"""

import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from launch.agent.processes import process_state, process_tree

STOPPABLE = "stoppable"  # below an agent's scratch folder
SPARE_S = 10.0  # between the end of the workers' grace and that of a job's time


class Stoppable:
    """The workers below this process, which have `grace_s` seconds to end once they are asked.

    One that can stop in order says so by a file in a folder of `scratch`, named by its pid and
    open for the reason. `say` tells a launcher that it has to be patient.
    """

    def __init__(self, scratch: str, grace_s: float, say: Callable[..., None]) -> None:
        self.folder = Path(scratch, STOPPABLE)
        self._grace_s = grace_s
        self._say = say
        self._until: float | None = None
        self._heeds: bool | None = None  # whether what runs would do something about SIGTERM

    @property
    def is_asked(self) -> bool:
        return self._until is not None

    @property
    def has_time(self) -> bool:
        """Whether they were asked, and may take longer still."""
        return self._until is not None and time.monotonic() < self._until

    def ask(self, why: str) -> None:
        """Ask those that can stop in order, if any have said so by now; once.

        Not torchrun, which would end its workers. They agree among themselves on the step.
        """
        workers = [path for path in self.folder.iterdir() if path.name.isdigit()]
        if self.is_asked or not workers:
            return
        for path in workers:
            path.write_text(why)
        self._ask([int(path.name) for path in workers])

    def ask_all(self) -> bool:
        """Send SIGTERM to what this process has started: torchrun, or the workers themselves.

        False where workers were asked before.
        """
        if self.is_asked:
            return False
        self._ask(process_tree.children(), all=True)
        return True

    def _ask(self, pids: Collection[int], **more: bool) -> None:
        self._until = time.monotonic() + self._grace_s
        process_tree.ask(pids)
        self._say(stopping=self._grace_s, **more)

    def is_last_moment(self, left_s: float | None) -> bool:
        """Whether just their grace is left of a job's time, for workers that catch SIGTERM.

        Those that do not may use all of it.
        """
        if left_s is None or left_s > self._grace_s + SPARE_S:
            return False
        if self._heeds is None:
            self._heeds = not self.is_asked and _catches_sigterm()
        return self._heeds


def _catches_sigterm() -> bool:
    """Whether a worker below this process would do something about SIGTERM, but for ending.

    `worker_main.py --exec` does not count: it only passes signals on.
    """
    return any(_catches(process) for process in process_tree.descendants())


def _catches(process: psutil.Process) -> bool:
    try:
        is_worker = process_tree.rank_text(process) and "--exec" not in process.cmdline()[:5]
    except psutil.Error:
        return False
    return bool(is_worker) and process_state.catches(process.pid, signal.SIGTERM)
