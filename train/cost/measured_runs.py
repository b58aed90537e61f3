"""A run as the model of cost needs it: settings, sizes, and the mean step, from its records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from muster import run_files
from muster.errors import UsageError
from train.cost.fit import ComputePoint
from train.report.data.reader import Row, read_mapping, read_run

OVERLAPPING = ("ddp", "accelerate")  # communication is part of their backward_s
# Two runs are the same experiment if these agree.
HELD = (
    "task", "model", "max_seq_length", "precision", "accumulation", "split", "threads", "compress",
    "compile",
)  # fmt: skip
BEFORE = {"compress": "none", "compile": False}  # of runs that are older than these settings
DEFAULT_BUCKET_MB = 25.0
# What a study's cell says beside them (the links' rate, say) must agree, too; but not these. The
# last three say how a mode sends its gradients: each run has its own.
FREE = frozenset(
    "sync nodes nproc_per_node batch_size seed repeat max_steps epochs"
    " bucket_mb overlap sparse_rows".split()
)
COMPUTING = ("data_s", "forward_s", "backward_s", "optimizer_s")
NEEDED = (*COMPUTING, "samples", "local_samples", "sync_s", "step_s", "payload_bytes")


@dataclass(frozen=True)
class Run:
    """One run's part in the comparison."""

    name: str
    mode: str
    workers: int
    settings: Mapping[str, Any]
    gradient_bytes: int  # of one worker
    buckets_bytes: tuple[int, ...]  # each collective of gradients; one if nobody recorded them
    steps_s: tuple[float, ...]  # of the first rank, as a report takes them: all but the first step
    samples: float  # of the slowest rank, the mean of the same steps
    sync_s: float  # of the rank that waits least: without what others make it wait for
    imbalance_s: float  # the slowest rank's computing above the mean of all
    points: tuple[ComputePoint, ...]  # of steps of a full batch
    notes: tuple[str, ...]
    cell: Mapping[str, Any] = field(default_factory=dict)  # what else its study says of it
    overlaps: bool = False  # a hand-written mode that sends during the backward pass

    @property
    def step_s(self) -> float:
        return fmean(self.steps_s)

    @property
    def held(self) -> tuple[str, ...]:
        """The settings that must agree, as text."""
        own = {name: self.settings.get(name) for name in HELD}
        return tuple(f"{name} {value}" for name, value in {**self.cell, **own}.items())


def read_all(path: Path) -> list[Run]:
    """The runs of a study, those of a folder of runs, or the one run that `path` is.

    Raises:
        UsageError: there is none with steps to learn from.
    """
    if (path / run_files.STUDY).exists():
        cells = read_mapping(path / run_files.STUDY, []).get("cells", [])
        done = [cell for cell in cells if cell.get("state") == "done"]
        found = [(path / str(cell.get("run_dir")), cell.get("settings") or {}) for cell in done]
    else:
        below = sorted(path.iterdir()) if path.is_dir() else []
        folders = [path] if run_files.METRICS.find(path) else below
        found = [(folder, {}) for folder in folders if run_files.METRICS.find(folder)]
    runs = [run for folder, settings in found if (run := read(folder, settings)) is not None]
    if not runs:
        raise UsageError(f"{path}: no run with two steps or more; give a run or a study folder")
    return runs


def read(folder: Path, cell: Mapping[str, Any] | None = None) -> Run | None:
    """One run, of a study's `cell` with these settings; None with fewer than two full batches.

    Raises:
        UsageError: nothing tells how the run was set.
    """
    run = read_run(folder)
    if not run.config:
        raise UsageError(f"{run_files.CONFIG.path(folder)}: missing, or no mapping of settings")
    settings = {**BEFORE, **run.config}
    ranks = [
        {row["step"]: row for row in rows["step"] if _is_whole(row)} for rows in run.ranks.values()
    ]
    common = sorted(set.intersection(*map(set, ranks))) if ranks else []
    largest = max((ranks[0][step]["samples"] for step in common), default=0)
    every = [[rank[step] for rank in ranks] for step in common[1:]]
    together = [rows for rows in every if rows[0]["samples"] == largest]
    if not together:
        return None
    workers = int(run.summary.get("world_size") or len(ranks))
    notes = [f"{folder.name}: records of {len(ranks)} of {workers} workers"]
    mode = str(settings.get("sync", "ddp"))
    size = int(together[-1][0]["payload_bytes"] / _times_handed_over(mode, workers))
    collectives = [row["collectives"] for row in run.rows("collectives") if row["collectives"]]
    beside = {
        str(name).lstrip("-").replace("-", "_"): value for name, value in (cell or {}).items()
    }
    return Run(
        name=folder.name,
        mode=mode,
        workers=workers,
        settings=settings,
        gradient_bytes=size,
        buckets_bytes=_buckets(collectives[-1] if collectives else [], size, settings),
        steps_s=tuple(ranks[0][step]["step_s"] for step in sorted(ranks[0])[1:]),
        samples=fmean(_slowest(rows)["local_samples"] for rows in every),
        sync_s=fmean(min(row["sync_s"] for row in rows) for rows in together),
        imbalance_s=fmean(_imbalance_s(rows, mode) for rows in together),
        points=tuple(_point(rows, workers) for rows in together),
        notes=tuple(notes if len(ranks) < workers else ()),
        cell={name: beside[name] for name in sorted(beside.keys() - FREE)},
        overlaps=mode not in OVERLAPPING and settings.get("overlap") is True,
    )


def _is_whole(row: Row) -> bool:
    return all(row[name] is not None for name in NEEDED)


def _computing_s(row: Row) -> float:
    return float(sum(row[name] for name in COMPUTING))


def _slowest(rows: Sequence[Row]) -> Row:
    return max(rows, key=_computing_s)


def _imbalance_s(rows: Sequence[Row], mode: str) -> float:
    seconds = [_own_s(row, mode) for row in rows]
    return max(seconds) - fmean(seconds)


def _own_s(row: Row, mode: str) -> float:
    """Computing without what others make the rank wait for in its backward pass.

    Where records do not tell how much of that pass is waiting, none of it counts.
    """
    if mode not in OVERLAPPING:
        return _computing_s(row)
    if not row["comm_s"]:
        return _computing_s(row) - float(row["backward_s"])
    return _computing_s(row) - max(0.0, float(row["comm_s"] - row["overlapped_s"]))


def _point(rows: Sequence[Row], workers: int) -> ComputePoint:
    slowest = _slowest(rows)
    # what no phase accounts for is the same on all ranks, but for what they wait for each other
    rest_s = min(row["step_s"] - _computing_s(row) - row["sync_s"] for row in rows)
    return ComputePoint(
        workers=workers,
        samples=slowest["local_samples"],
        data_s=slowest["data_s"],
        forward_s=slowest["forward_s"],
        backward_s=slowest["backward_s"],
        rest_s=slowest["optimizer_s"] + max(0.0, rest_s),
    )


def _times_handed_over(mode: str, workers: int) -> float:
    """How often a rank hands the gradients' bytes to collectives; zero1 its part once more."""
    return {"gather_scatter": 2.0, "zero1": 1 + 1 / workers}.get(mode, 1.0)


def _buckets(collectives: Sequence[Any], size: int, settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Bytes of each collective, as recorded, else as the bucket's size cuts the gradients."""
    for operations in (("all_to_all", "all_reduce"), ("gather",)):
        found = tuple(int(one[3]) for one in collectives if one[0] in operations)
        if found:
            return found
    set_mb = settings.get("bucket_mb")
    bucket_mb = DEFAULT_BUCKET_MB if set_mb in (None, "auto") else float(set_mb)
    count = max(1, -(-size // int(bucket_mb * 2**20))) if bucket_mb else 1
    return (size // count,) * count
