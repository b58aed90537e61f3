"""The processes of a run on one node, and whether one of them has failed."""

import subprocess
import time
from collections.abc import Mapping, Sequence

from launch.agent.agent_records import (
    failed,
    log_bytes,
    open_log,
    read_log,
    stopped_cleanly,
    write_end_of,
)
from launch.agent.assignment import Assignment
from launch.agent.processes.spawn import how_it_ended, spawn
from launch.runs.last_output import exit_codes_of
from muster.errors import STOPPED

# A worker that failed ends those beside it; after so long one of them does not let itself be ended,
# and torchrun would wait half a minute for it.
LOOK_S, FAILED_S = 0.5, 1.5


class Workload:
    """torchrun, or the workers themselves, from their start to their end.

    Raises:
        MusterError: on creation; there is no such program.
    """

    def __init__(
        self,
        assignment: Assignment,
        ranks: Sequence[int],
        master_port: int,
        env: Mapping[str, str],
    ) -> None:
        self._assignment = assignment
        self._ranks = ranks
        self._looked, self._log_bytes = 0.0, 0
        self._failed_at: float | None = None  # when it was first seen that a worker has
        self._children: list[subprocess.Popen[bytes]] = []
        with open_log(assignment) as log:
            for command in assignment.commands:
                self._children.append(spawn(command.decided(master_port), env, log))

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def runs(self) -> bool:
        return any(child.poll() is None for child in self._children)

    def failure(self) -> str | None:
        """What has failed; None as long as nothing has."""
        for child, command in zip(self._children, self._assignment.commands, strict=True):
            code = child.poll()
            if code in (None, 0) or (code == STOPPED and self.runs):
                continue
            own = "RANK" in command.env  # else it has started several
            self._write_ends({int(command.env["RANK"]): code} if own else self._logged())
            if not stopped_cleanly(self._assignment, self._ranks):
                return how_it_ended(child.returncode, command, self._assignment.name)
        return self._failed() or self._hung()

    def kill(self) -> None:
        """End torchrun, or workers that it does not stand above, at once."""
        for child in self._children:
            child.kill()

    def _failed(self) -> str | None:
        """Workers have failed, as torchrun logs at once."""
        size = log_bytes(self._assignment)
        if size == self._log_bytes or not self.runs:
            return None
        self._log_bytes = size
        ends = {rank: code for rank, code in self._logged().items() if code != STOPPED}
        self._write_ends(ends)
        ranks = ", ".join(map(str, ends))
        return f"rank {ranks} on {self._assignment.name} failed" if ends else None

    def _logged(self) -> dict[int, int]:
        """The exit codes of workers, as far as their starter has logged them."""
        found = exit_codes_of(read_log(self._assignment)).items()
        return {self._ranks[local_rank]: code for local_rank, code in found}

    def _write_ends(self, ends: Mapping[int, int]) -> None:
        """Write down the exit code of workers that could not: C code has ended them, say."""
        for rank, code in ends.items():
            if code > 0:
                write_end_of(self._assignment, rank, code)

    def _hung(self) -> str | None:
        """Workers have said that they failed, and others beside them do not end."""
        now = time.monotonic()
        if now - self._looked < LOOK_S or not self.runs:
            return None
        self._looked = now
        gone = failed(self._assignment, self._ranks)
        if not gone:
            return None
        self._failed_at = self._failed_at or now
        if now - self._failed_at < FAILED_S:
            return None
        names = ", ".join(map(str, gone))
        return f"rank {names} on {self._assignment.name} failed, and others there went on"
