"""A run as the model of cost needs it: settings, sizes, and the mean step, from its records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from muster import run_files
from muster.errors import UsageError
from train.cost.fit import ComputePoint
from train.records.schema import StepRecord

OVERLAPPING = ("ddp", "accelerate")  # communication is part of their backward_s
# Two runs are the same experiment if these agree.
HELD = (
    "task", "model", "max_seq_length", "precision", "accumulation", "split", "threads", "compress",
    "compile",
)  # fmt: skip
DEFAULT_BUCKET_MB = 25.0
HOW = {"bucket_mb", "overlap", "sparse_rows"}  # a mode sends its gradients: each run has its own
# What a study's cell says beside them (the links' rate, say) must agree, too; but not these.
FREE = {"sync", "nodes", "nproc_per_node", "batch_size", "seed", "repeat", "max_steps", "epochs"}
FREE |= HOW
STEP_FIELDS = {item.name for item in fields(StepRecord)}
NEEDED = {item.name for item in fields(StepRecord) if item.default is MISSING}


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
    """The runs of a study, or the one run that `path` is.

    Raises:
        UsageError: there is none with steps to learn from.
    """
    study = path / run_files.STUDY
    cells: dict[Path, Mapping[str, Any]] = {}
    if study.exists():
        cells = {
            path / str(cell.get("run_dir")): cell
            for cell in _json(study).get("cells", [])
            if cell.get("state") == "done"
        }
        folders = list(cells)
    elif run_files.METRICS.find(path):
        folders = [path]
    else:
        below = sorted(path.iterdir()) if path.is_dir() else []
        folders = [one for one in below if run_files.METRICS.find(one)]
    read_in = [(read(folder), cells.get(folder, {})) for folder in folders]
    runs = [replace(run, cell=_beside(cell)) for run, cell in read_in if run is not None]
    if not runs:
        raise UsageError(f"{path}: no run with two steps or more; give a run or a study folder")
    return runs


def _beside(cell: Mapping[str, Any]) -> dict[str, Any]:
    """What the study set in this cell that must agree between cells."""
    settings = cell.get("settings") or {}
    plain = {str(name).lstrip("-").replace("-", "_"): value for name, value in settings.items()}
    return {name: plain[name] for name in sorted(plain) if name not in FREE}


def read(folder: Path) -> Run | None:
    """One run; None where it has fewer than two steps of a full batch."""
    settings = _settings(run_files.CONFIG.path(folder))
    ranks: list[dict[int, StepRecord]] = []
    collectives: list[Sequence[Any]] = []
    notes: list[str] = []
    for file in run_files.METRICS.find(folder):
        steps: dict[int, StepRecord] = {}
        for entry in _lines(file):
            if entry.get("kind") == "step" and entry.keys() >= NEEDED:
                known = {name: entry[name] for name in entry.keys() & STEP_FIELDS}
                steps[entry["step"]] = StepRecord(**known)
            elif entry.get("kind") == "collectives":
                collectives = entry.get("collectives") or collectives
        ranks.append(steps)
    common = sorted(set.intersection(*map(set, ranks))) if ranks else []
    largest = max((ranks[0][step].samples for step in common), default=0)
    timed = [step for step in common[1:] if ranks[0][step].samples == largest]
    if not timed:
        return None
    workers = int(_json(run_files.SUMMARY.path(folder)).get("world_size") or len(ranks))
    if len(ranks) < workers:
        notes.append(f"{folder.name}: records of {len(ranks)} of {workers} workers")
    together = [[rank[step] for rank in ranks] for step in timed]
    every = [[rank[step] for rank in ranks] for step in common[1:]]
    mode = str(settings.get("sync", "ddp"))
    size = together[-1][0].payload_bytes // (2 if mode == "gather_scatter" else 1)
    return Run(
        name=folder.name,
        mode=mode,
        workers=workers,
        settings=settings,
        gradient_bytes=size,
        buckets_bytes=_buckets(collectives, size, _bucket_mb(settings)),
        overlaps=mode not in OVERLAPPING and settings.get("overlap") is True,
        steps_s=tuple(ranks[0][step].step_s for step in sorted(ranks[0])[1:]),
        samples=fmean(_longest(records).local_samples for records in every),
        sync_s=fmean(min(one.sync_s for one in records) for records in together),
        imbalance_s=fmean(_imbalance_s(records, mode) for records in together),
        points=tuple(_slowest(records, workers) for records in together),
        notes=tuple(notes),
    )


def _computing_s(record: StepRecord) -> float:
    return record.data_s + record.forward_s + record.backward_s + record.optimizer_s


def _longest(records: Sequence[StepRecord]) -> StepRecord:
    return max(records, key=_computing_s)


def _imbalance_s(records: Sequence[StepRecord], mode: str) -> float:
    seconds = [_own_s(record, mode) for record in records]
    return max(seconds) - fmean(seconds)


def _own_s(record: StepRecord, mode: str) -> float:
    """Computing without what others make the rank wait for in its backward pass.

    Where records do not tell how much of that pass is waiting, none of it counts.
    """
    if mode not in OVERLAPPING:
        return _computing_s(record)
    if not record.comm_s:
        return _computing_s(record) - record.backward_s
    return _computing_s(record) - max(0.0, record.comm_s - record.overlapped_s)


def _slowest(records: Sequence[StepRecord], workers: int) -> ComputePoint:
    slowest = _longest(records)
    # what no phase accounts for is the same on all ranks, but for what they wait for each other
    rest_s = min(one.step_s - _computing_s(one) - one.sync_s for one in records)
    return ComputePoint(
        workers=workers,
        samples=slowest.local_samples,
        data_s=slowest.data_s,
        forward_s=slowest.forward_s,
        backward_s=slowest.backward_s,
        rest_s=slowest.optimizer_s + max(0.0, rest_s),
    )


def _bucket_mb(settings: Mapping[str, Any]) -> float:
    """As set; where the mode chooses, as in all modes before modes chose."""
    size = settings.get("bucket_mb")
    return DEFAULT_BUCKET_MB if size in (None, "auto") else float(size)


def _buckets(collectives: Sequence[Any], size: int, bucket_mb: float) -> tuple[int, ...]:
    """Bytes of each collective, as recorded, else as the bucket's size cuts the gradients."""
    for operation in ("all_reduce", "gather"):
        found = tuple(int(one[3]) for one in collectives if one[0] == operation)
        if found:
            return found
    count = max(1, -(-size // int(bucket_mb * 2**20))) if bucket_mb else 1
    return (size // count,) * count


def _settings(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {error}") from None
    return {"compress": "none", "compile": False, **raw} if isinstance(raw, dict) else {}


def _json(path: Path) -> dict[str, Any]:
    """What the file holds; nothing if it is not there or not whole."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole record; the last line may be half written."""
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(text)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
