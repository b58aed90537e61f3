"""What each rank does by itself, and which of them the others wait for."""

import math

from train.report.data.reader import Row
from train.report.data.statistics import estimate, numbers
from train.report.data.subject import Subject
from train.report.data.tables import Table, mean_of

OVERLAPPED = frozenset({"ddp", "accelerate"})


def per_rank(subject: Subject) -> Table:
    """Each rank's part; what a rank does before it waits for others is its own work."""
    table = Table("ranks", "What each rank does")
    for entry in subject.entries:
        for rank, kinds in sorted(entry.run.ranks.items()):
            steps = kinds["step"][1:]
            step_s, local = mean_of(steps, "step_s"), mean_of(steps, "local_samples")
            if step_s and entry.workers > 1:
                table.add(
                    run=entry.name,
                    rank=rank,
                    steps=len(steps),
                    local_samples=local,
                    own_work_s=own_work_s(steps, entry.sync),
                    **_own_work_interval(steps, entry.sync),
                    sync_s=mean_of(steps, "sync_s"),
                    samples_per_s=local / step_s if local is not None else None,
                )
    return table


def own_work_s(steps: list[Row], sync: str) -> float | None:
    """Mean seconds before a rank can wait for others: with overlap, the backward pass waits."""
    names = ["data_s", "forward_s"] + ([] if sync in OVERLAPPED else ["backward_s"])
    parts = numbers(mean_of(steps, name) for name in names)
    return sum(parts) if len(parts) == len(names) else None


def _own_work_interval(steps: list[Row], sync: str) -> dict[str, float | None]:
    found = estimate(own_work_s([row], sync) for row in steps)
    return {
        "own_work_low_s": found.low if found else None,
        "own_work_high_s": found.high if found else None,
    }


def straggler(rows: list[Row]) -> tuple[Row, float] | None:
    """Of a run's rows by rank, that of the rank that others wait for, and their mean own work.

    None where no rank works at least a tenth longer than the others do.
    """
    known = [row for row in rows if row["own_work_s"] is not None]
    if len(known) < 2:
        return None
    slow = max(known, key=lambda row: row["own_work_s"])
    others_s = [row["own_work_s"] for row in known if row is not slow]
    mean_s = math.fsum(others_s) / len(others_s)
    return (slow, mean_s) if slow["own_work_s"] > 1.1 * mean_s else None


def is_clear(slow: Row, rows: list[Row]) -> bool:
    """Whether the 95 % interval of a rank's own work is above that of each other rank in `rows`."""
    low = slow["own_work_low_s"]
    others = [row["own_work_high_s"] for row in rows if row is not slow]
    return low is not None and all(high is not None and high < low for high in others)
