"""Workers that are training are asked to stop after their step, and get the time for it.

How it works: a worker that can stop in order makes a file named by its pid. Whoever has the run
stop writes the reason into each of these files first, and then sends SIGTERM to these workers
alone: torchrun would answer a SIGTERM of its own by killing them. They agree on the step among
themselves. A worker that has made no file yet is not asked, and is ended with the others.
"""

import time
from pathlib import Path

from launch.agent.processes import process_tree


class Stoppable:
    """The workers below this process that have said that they can stop in order.

    Each does so by a file in `folder`, named by its pid and open for the reason.
    """

    def __init__(self, folder: Path, grace_s: float) -> None:
        folder.mkdir()
        self.folder = folder
        self.grace_s = grace_s
        self._until: float | None = None

    @property
    def is_asked(self) -> bool:
        return self._until is not None

    @property
    def has_time(self) -> bool:
        """Whether they were asked, and may take longer still."""
        return self._until is not None and time.monotonic() < self._until

    def ask(self, why: str) -> bool:
        """Ask those there are; false where there are none yet.

        Not torchrun, which would end its workers. They agree among themselves on the step.
        """
        workers = [path for path in self.folder.iterdir() if path.name.isdigit()]
        if not workers:
            return False
        self._until = time.monotonic() + self.grace_s
        for path in workers:
            path.write_text(why)
        process_tree.ask([int(path.name) for path in workers])
        return True
