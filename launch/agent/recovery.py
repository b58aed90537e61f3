"""Measure the seconds from the end of an attempt to the first step of the next.

How it works: each part ends at a recorded time. The files of the earlier attempt say when a worker
or an agent first reported the fault. The fault is assumed to have happened right after the last
record of a rank, but no longer ago than the limit for silence. For the new attempt rank 0's
`start.json` has the times. A program that records no steps counts as back with its first output.
"""

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from pathlib import Path

from launch.deadlines import AGENT_LOST_WHEN_SILENT_S, RECOVERY_LOOK_LEAST_S, RECOVERY_LOOK_MOST_S
from launch.nodes.running_time import running_s
from launch.runs import end_facts
from muster import records, run_files
from muster.writing import CannotWrite, write_json

# Between two looks: a share of the time since the start, which is that error of a "first output".
SHARE = 0.02


@dataclass
class Recovery:
    """The recovery of the present attempt of a run that was restarted."""

    run_dir: Path
    attempt: int  # 2 is the one after the first
    _began_s: float = field(default_factory=running_s)
    _looked_s: float = -math.inf

    def is_due(self) -> bool:
        """Whether it is time to look: rarely, where nothing has come for long, or ever will."""
        now = running_s()
        if now - self._looked_s < min(
            max((now - self._began_s) * SHARE, RECOVERY_LOOK_LEAST_S), RECOVERY_LOOK_MOST_S
        ):
            return False
        self._looked_s = now
        return True

    @property
    def before(self) -> Path:
        """The files of the earlier attempt."""
        return run_files.ATTEMPTS.path(self.run_dir, attempt=self.attempt - 2)

    def look(self) -> str | None:
        """The line to print when the attempt is back at work; it is also recorded."""
        path = run_files.AGENT.path(self.run_dir, node=0)
        agent = records.read(run_files.AGENT, path, "time_unix_s")
        if agent is None or (back := self._back()) is None:
            return None
        what, marks = back
        if not (times := list(self._of_fault())):
            return None
        times = [*times, float(agent["time_unix_s"]), *marks.values()]
        times = [*accumulate(times, max)]  # two machines' clocks may differ by more than a part
        names = ["noticed", "stopped", "agents", *marks]
        parts = {
            name: round(end - begin, 3)
            for name, (begin, end) in zip(names, pairwise(times), strict=True)
        }
        total = round(times[-1] - times[0], 3)
        record = {"attempt": self.attempt, "fault_unix_s": times[0], "total_s": total}
        with suppress(CannotWrite):  # not a reason to end the run
            write_json(run_files.RECOVERY.path(self.run_dir), {**record, "parts_s": parts})
        shown = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        return f"attempt {self.attempt}: {what} after {total:.1f} s: {shown}"

    def _of_fault(self) -> Iterator[float]:
        """When it came, when an agent noticed it, and when nothing was left of the attempt.

        By the clock of node 0, as what is written of the new attempt. Nothing where nobody was left
        to write it down.
        """
        agents = end_facts.read_agents(self.before)
        offsets = {rank: one["clock_offset_s"] for one in agents for rank in one["ranks"]}
        by_workers = [
            one["time_unix_s"] + offsets.get(rank, 0.0)
            for rank, one in end_facts.read_exits(self.before).items()
            if one["cause"] != "done"
        ]
        end = records.read(run_files.EXIT, run_files.EXIT.path(self.before), "time_unix_s")
        ends = [] if end is None else [float(end["time_unix_s"])]
        heard = [
            one["noticed_unix_s"] + one["clock_offset_s"]
            for one in agents
            if "noticed_unix_s" in one
        ]
        if not (known := [*by_workers, *heard, *ends]):
            return
        noticed = min([*heard, *ends], default=max(known))
        first = min([noticed, *by_workers])
        written = [path.stat().st_mtime for path in run_files.METRICS.find(self.before)]
        # the first rank to fall silent: others may still have recorded a checkpoint
        came = min(first, max(min(written), first - AGENT_LOST_WHEN_SILENT_S)) if written else first
        offset_s = sum(one["clock_offset_s"] for one in agents if one["index"] == 0)
        yield from (one - offset_s for one in (came, noticed, max(ends or known)))

    def _back(self) -> tuple[str, dict[str, float]] | None:
        """What the attempt was back at, and the times of its phases; None: not yet."""
        path = run_files.START.path(self.run_dir)
        start = records.read(run_files.START, path, "step", "marks_unix_s")
        if start is not None:
            marks = start["marks_unix_s"]
            named = marks if len(marks) > 1 else {"program": marks["step"]}
            return f"step {start['step']} again", named
        if run_files.START.path(self.before).exists():
            return None
        outputs = chain(*(file.find(self.run_dir) for file in (run_files.OUTPUT, run_files.ERRORS)))
        if any(path.stat().st_size for path in outputs):
            return "first output", {"program": time.time()}
        return None
