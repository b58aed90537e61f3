"""Ask workers to stop, and give them time to end by themselves.

How it works: a worker that can stop cleanly makes a file named after its pid. To stop the run, the
agent first writes the reason into each of these files, and then sends SIGTERM to these workers
only: torchrun would answer a SIGTERM by ending its workers. The workers agree on the step among
themselves. A worker that has made no file yet is not asked: it is ended together with the others.

If there is no such file at all, the program does not use `muster` for stopping. It may still catch
SIGTERM, so torchrun gets the signal, passes it on, and waits for the program as long as this module
allows.
"""

import signal
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from launch.agent.processes import process_state, process_tree
from launch.deadlines import JOB_TIME_TO_SPARE_S
from launch.nodes.channel import running_s
from launch.nodes.messages import Stopping

STOPPABLE = "stoppable"  # below an agent's scratch folder


class Stoppable:
    """The workers below this process, which have `grace_s` seconds to end once they are asked.

    A worker that can stop cleanly has a file in `folder`, named after its pid, which gets the
    reason. `send` tells the leader how long workers may take.
    """

    def __init__(self, folder: Path, grace_s: float, send: Callable[[Stopping], None]) -> None:
        self._folder = folder
        self._grace_s = grace_s
        self._send = send
        self._until: float | None = None
        self.has_asked_all = False  # all workers were sent SIGTERM: their ends are not failures
        self._catches_sigterm: bool | None = None  # whether the program does; None: not checked

    @property
    def is_asked(self) -> bool:
        return self._until is not None

    @property
    def has_time(self) -> bool:
        """Whether workers were asked, and still have time."""
        return self._until is not None and running_s() < self._until

    def ask(self, why: str) -> None:
        """Ask the workers that can stop cleanly to stop, if there are any by now; only once.

        torchrun is not asked, since it would end its workers. The workers agree on the step.
        """
        workers = [path for path in self._folder.iterdir() if path.name.isdigit()]
        if self.is_asked or not workers:
            return
        for path in workers:
            path.write_text(why)
        self._ask([int(path.name) for path in workers])

    def ask_all(self) -> None:
        """Send SIGTERM to the children of this process: torchrun, or the workers themselves."""
        self.has_asked_all = True
        self._ask(process_tree.children())

    def _ask(self, pids: Collection[int]) -> None:
        self._until = running_s() + self._grace_s
        process_tree.send_sigterm(pids)
        self._send(Stopping(self._grace_s, self.has_asked_all))

    def is_last_moment(self, left_s: float | None) -> bool:
        """Whether the time left in a job is only enough for workers that catch SIGTERM to end.

        Workers that do not catch it may use all of the time.
        """
        if left_s is None or left_s > self._grace_s + JOB_TIME_TO_SPARE_S:
            return False
        if self._catches_sigterm is None:
            self._catches_sigterm = not self.is_asked and any(
                map(_catches, process_tree.descendants())
            )
        return self._catches_sigterm


def _catches(process: psutil.Process) -> bool:
    """Whether this process is a worker with its own handler for SIGTERM.

    `worker_main.py --exec` does not count: it only passes signals on.
    """
    try:
        is_worker = process_tree.rank_text(process) and "--exec" not in process.cmdline()[:5]
    except psutil.Error:
        return False
    return bool(is_worker) and process_state.catches(process.pid, signal.SIGTERM)
