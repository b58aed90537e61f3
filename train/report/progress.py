"""What a run is doing now, from lines that are still being written."""

import json
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster import run_files
from train.report.data.reader import KINDS, OF_RUN, Row, Run, parse_row, read_json, read_run
from train.report.data.statistics import estimate, numbers
from train.report.data.tables import own_work_s

WINDOW = 20  # steps that rates are taken over


@dataclass
class Tail:
    """One file of records, read on from where it was; a half-written line waits for its end."""

    path: Path
    rank: int
    offset: int = 0
    rows: dict[str, list[Row]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def poll(self) -> None:
        try:
            if self.path.stat().st_size < self.offset:  # a new attempt writes a new file
                self.offset, self.rows = 0, {kind: [] for kind in KINDS}
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return
        whole, newline, _ = data.rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = parse_row(json.loads(line), self.rank, Counter(), Counter())
        except ValueError:
            return
        if row is not None:
            self.rows[row["kind"]].append(row)


class Watch:
    """A run that may go on; `poll` reads what is new."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tails: dict[int, Tail] = {}
        self.run: Run = read_run(path)
        self.poll()

    def poll(self) -> None:
        for rank, file in run_files.METRICS.by_number(self.path).items():
            self._tails.setdefault(rank, Tail(file, rank))
        for tail in self._tails.values():
            tail.poll()
        self.run.ranks = {rank: tail.rows for rank, tail in sorted(self._tails.items())}
        if not self.run.config:
            self.run.config = read_run(self.path).config
        notes: list[str] = []
        for name in ("end", "summary"):
            found = read_json(OF_RUN[name].path(self.path), notes)
            setattr(self.run, name, found if isinstance(found, dict) else {})

    @property
    def over(self) -> bool:
        return self.run.over


def total_steps(run: Run) -> int | None:
    """Of the whole run; None until the length of an epoch is known."""
    config, steps = run.config, run.first_rank("step")
    most = config.get("max_steps")
    by_epochs = None
    ends: dict[int, int] = {}
    for row in steps:
        if isinstance(row["epoch"], int):
            ends[row["epoch"]] = row["step"]
    if ends and isinstance(config.get("epochs"), int):
        first, last = min(ends), max(ends)
        if first < last:
            by_epochs = round(ends[first] / first) * int(config["epochs"])
    if isinstance(most, int):
        return min(most, by_epochs) if by_epochs else most
    return by_epochs


def remaining_s(run: Run) -> float | None:
    """At the pace of the last steps; None where the end is not known."""
    steps, total = run.first_rank("step"), total_steps(run)
    pace = estimate(row["step_s"] for row in steps[1:][-WINDOW:])
    if not steps or total is None or pace is None:
        return None
    return max(0, total - int(steps[-1]["step"])) * pace.mean


def rank_rows(run: Run) -> list[dict[str, Any]]:
    """Each rank's step, throughput and work over its last steps."""
    found = []
    for rank, kinds in sorted(run.ranks.items()):
        last = kinds["step"][1:][-WINDOW:] or kinds["step"]
        known = [row for row in last if len(numbers([row["local_samples"], row["step_s"]])) == 2]
        total_s = sum(row["step_s"] for row in known)
        sync = estimate(row["sync_s"] for row in last)
        rate = sum(row["local_samples"] for row in known) / total_s if total_s else None
        found.append(
            {
                "rank": rank,
                "step": last[-1]["step"] if last else None,
                "samples_per_s": rate,
                "own_work_s": own_work_s(last, str(run.config.get("sync"))) if last else None,
                "sync_s": sync.mean if sync else None,
            }
        )
    return found


def straggler(rows: list[dict[str, Any]]) -> tuple[int, float] | None:
    """The rank that the others wait for, and how many times their work its own takes."""
    known = [row for row in rows if row["own_work_s"]]
    if len(known) < 2:
        return None
    slow = max(known, key=lambda row: row["own_work_s"])
    mean = math.fsum(row["own_work_s"] for row in known if row is not slow) / (len(known) - 1)
    ratio = slow["own_work_s"] / mean
    return (int(slow["rank"]), ratio) if ratio > 1.1 else None


def silent_s(path: Path) -> float | None:
    """Since the newest record was written, by this machine's clock and the disk's."""
    times = [file.stat().st_mtime for file in run_files.METRICS.find(path)]
    return max(0.0, time.time() - max(times)) if times else None
