"""What a step of a run computes and sends, from its records."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from train.report.data.reader import OVERLAPPED, Row, Run, numbers

COMPUTING = ("data_s", "forward_s", "backward_s", "optimizer_s")
NEEDED = (*COMPUTING, "samples", "sync_s", "step_s", "payload_bytes")


@dataclass(frozen=True)
class Steps:
    """The mean of a run's full batches but the first, of the rank that computes longest."""

    computing_s: float  # all but the sync
    backward_s: float  # of it
    buckets_bytes: tuple[int, ...]  # of each collective of gradients
    is_mixed: bool  # it communicates in its backward pass, which that may slow


def read_steps(run: Run, mode: str, workers: int) -> Steps | None:
    """None where too little is on record."""
    ranks = [
        {
            row["step"]: row
            for row in rows["step"]
            if len(numbers(map(row.get, NEEDED))) == len(NEEDED)
        }
        for rows in run.ranks.values()
    ]
    common = sorted(set.intersection(*map(set, ranks))) if ranks else []
    largest = max((ranks[0][step]["samples"] for step in common), default=0)
    full = [[rank[step] for rank in ranks] for step in common[1:]]
    full = [rows for rows in full if rows[0]["samples"] == largest]
    if not full or len(ranks) < workers:
        return None
    return Steps(
        computing_s=fmean(map(_computing_s, full)),
        backward_s=fmean(max(rows, key=_own_s)["backward_s"] for rows in full),
        buckets_bytes=_buckets(run, mode, workers, full[-1][0]["payload_bytes"]),
        is_mixed=workers > 1 and (mode in OVERLAPPED or run.config.get("overlap") is True),
    )


def _own_s(row: Row) -> float:
    return float(sum(row[name] for name in COMPUTING))


def _computing_s(rows: Sequence[Row]) -> float:
    """What no phase accounts for is the same on all ranks, but for waiting."""
    rest_s: float = min(row["step_s"] - _own_s(row) - row["sync_s"] for row in rows)
    return max(map(_own_s, rows)) + max(0.0, rest_s)


def _buckets(run: Run, mode: str, workers: int, payload_bytes: int) -> tuple[int, ...]:
    """Bytes of each collective of gradients as recorded, else all in one."""
    recorded = [row["collectives"] for row in run.first_rank("collectives") if row["collectives"]]
    for operations in (("all_reduce", "reduce_scatter", "all_to_all"), ("gather",)):
        found = tuple(int(one[3]) for one in (recorded or [[]])[-1] if one[0] in operations)
        if found:
            return found
    # how often a rank hands the gradients' bytes to collectives; zero1 its part once more
    times = {"gather_scatter": 2.0, "zero1": 1 + 1 / workers}.get(mode, 1.0)
    return (int(payload_bytes / times),)
