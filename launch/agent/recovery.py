"""Measure the seconds from the end of an attempt to the first step of the next.

How it works: each part of a recovery ends at a recorded time, by the leader's clock. The record of
the earlier attempt's end has three times: when the cause happened, as the agent or the starter
reported it; when the leader first heard of a failure; and when no process was left. The leader
knows when all agents were connected again. The later times are in rank 0's `start.json`, by its
node's clock. A program that records no steps counts as back with its first output.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path

from launch.deadlines import RECOVERY_LOOK_LEAST_S, RECOVERY_LOOK_MOST_S
from launch.ends import End
from launch.nodes.channel import running_s
from muster import records, run_files
from muster.writing import CannotWrite, write_json

LOOK_SHARE = 0.02  # of the time since the start, between two looks


@dataclass
class Recovery:
    """The recovery of the present attempt of a run that was restarted.

    `has_output`: whether its workers have printed anything. `clock_offset_s`: seconds to add to the
    clock of node 0 to get the leader's.
    """

    run_dir: Path
    attempt: int  # 2 is the one after the first
    has_output: Callable[[], bool]
    clock_offset_s: Callable[[], float]
    connected_unix_s: float | None = None  # when workers could start
    _began_s: float = field(default_factory=running_s)
    _looked_s: float = -math.inf

    def is_due(self) -> bool:
        """Whether it is time to look: the longer nothing has come, the more rarely."""
        if self.connected_unix_s is None:
            return False
        now = running_s()
        wait_s = max((now - self._began_s) * LOOK_SHARE, RECOVERY_LOOK_LEAST_S)
        if now - self._looked_s < min(wait_s, RECOVERY_LOOK_MOST_S):
            return False
        self._looked_s = now
        return True

    def look(self) -> str | None:
        """The line to print when the attempt is back at work; it is also recorded."""
        back = self._first_work()
        before = self._earlier_times()
        if back is None or before is None or self.connected_unix_s is None:
            return None
        what = back[0]
        marks = back[1]
        times = [*before, self.connected_unix_s, *marks.values()]
        times = [*accumulate(times, max)]  # clocks of two machines may differ by more than a part
        names = ["noticed", "stopped", "agents", *marks]
        parts = {
            name: round(end - begin, 3)
            for name, (begin, end) in zip(names, pairwise(times), strict=True)
        }
        total = round(times[-1] - times[0], 3)
        record = {"attempt": self.attempt, "fault_unix_s": times[0], "total_s": total}
        with suppress(CannotWrite):  # not a reason to end the run
            write_json(run_files.RECOVERY.path(self.run_dir), {**record, "parts_s": parts})
        each = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        return f"attempt {self.attempt}: {what} after {total:.1f} s: {each}"

    @property
    def _earlier_folder(self) -> Path:
        return run_files.ATTEMPTS.path(self.run_dir, attempt=self.attempt - 2)

    def _earlier_times(self) -> tuple[float, float, float] | None:
        """When the fault happened, was noticed, and no process was left; None if not recorded."""
        path = run_files.EXIT.path(self._earlier_folder)
        record = records.read(run_files.EXIT, path, "time_unix_s")
        end = None if record is None else End.from_json(record.get("end"))
        if record is None or end is None:
            return None
        over = float(record["time_unix_s"])
        noticed = float(record.get("noticed_unix_s") or over)
        return end.time_unix_s or noticed, noticed, over  # some ends have no known time

    def _first_work(self) -> tuple[str, dict[str, float]] | None:
        """What the attempt's first work was, and the times of its phases; None: not yet."""
        path = run_files.START.path(self.run_dir)
        start = records.read(run_files.START, path, "step", "marks_unix_s")
        if start is not None:
            offset_s = self.clock_offset_s()
            marks = {name: at + offset_s for name, at in start["marks_unix_s"].items()}
            named = marks if len(marks) > 1 else {"program": marks["step"]}
            return f"step {start['step']} again", named
        if run_files.START.path(self._earlier_folder).exists() or not self.has_output():
            return None
        return "first output", {"program": time.time()}
