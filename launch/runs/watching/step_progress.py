"""How far a run has come, from the ends of a few of its files, however long those are."""

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import cli
from configs.settings.train import TrainConfig
from muster import run_files
from muster.errors import MusterError

TAIL_BYTES = 65_536
WINDOW = 20  # steps that the rate is taken over
LINE_BYTES = 8_192  # more than a record has
NEVER = "never"


@dataclass(frozen=True)
class StepProgress:
    """The last step that rank 0 has on record."""

    step: int
    epoch: int
    loss: float
    step_s: float  # the median of the last steps, evaluation and checkpoints left out
    silent_s: float  # since anything was put on record
    total: int | None = None  # steps of the whole run; None: not known before an epoch is over

    @property
    def left_s(self) -> float | None:
        """Seconds to the last step at this pace, without evaluation; None: not known."""
        return None if self.total is None else max(self.total - self.step, 0) * self.step_s


@dataclass(frozen=True)
class Checkpoints:
    """What a run has written of its checkpoints."""

    wanted: bool
    step: int | None = None  # of the last
    age_s: float = 0.0


def last_steps(path: Path) -> list[dict[str, Any]]:
    """The last records of steps of one rank; none where they are put aside as we look."""
    try:
        with path.open("rb") as file:
            records = _from(file, os.fstat(file.fileno()).st_size - TAIL_BYTES)
    except OSError:
        return []
    return [one for one in records if one.get("kind") == "step"]


def step_progress(run_dir: Path, settings: TrainConfig | None) -> StepProgress | None:
    """How far the run is; None: no step is on record."""
    path = run_files.METRICS.path(run_dir, rank=0)
    try:
        with path.open("rb") as file:
            size, changed_s = os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_mtime
            records = [one for one in _from(file, size - TAIL_BYTES) if one.get("kind") == "step"]
            if not records:
                return None
            last = records[-1]
            total = _total(file, size, last, settings) if settings else None
    except OSError:
        return None
    times = sorted(float(one["step_s"]) for one in records[-WINDOW:])
    return StepProgress(
        step=int(last["step"]),
        epoch=int(last["epoch"]),
        loss=float(last["loss"]),
        step_s=times[len(times) // 2],
        silent_s=max(time.time() - changed_s, 0.0),
        total=total,
    )


def checkpoints(run_dir: Path, settings: TrainConfig) -> Checkpoints:
    """The run's last checkpoint, where its folder is seen from here."""
    folder = settings.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)
    steps = {}
    for path in Path(folder).glob("step_*"):
        if found := re.fullmatch(r"step_(\d+)", path.name):
            steps[int(found[1])] = path
    wanted = str(settings.checkpoint_every) != NEVER
    if not steps:
        return Checkpoints(wanted)
    last = max(steps)
    try:
        age_s = time.time() - steps[last].stat().st_mtime
    except OSError:  # removed, since another is newer
        age_s = 0.0
    return Checkpoints(wanted, last, max(age_s, 0.0))


def settings_of(run_dir: Path) -> TrainConfig | None:
    """The settings of a run of our own trainer; None where it is another program's, or unknown."""
    path = run_files.CONFIG.path(run_dir)
    try:
        if "\ntask: " not in path.read_text(encoding="utf-8"):
            return None
        found = cli.parse([TrainConfig], ["--config", str(path)], prog="", description="")
    except (OSError, ValueError, MusterError):  # of another version, or damaged
        return None
    train: TrainConfig = found[0]
    return train


def _total(file: Any, size: int, last: dict[str, Any], settings: TrainConfig) -> int | None:
    """Steps of the whole run: every epoch has as many."""
    epoch, by_epochs = int(last["epoch"]), None
    if epoch > 1:
        first = _first_step_of(file, size, epoch)
        by_epochs = round((first - 1) / (epoch - 1) * settings.epochs) if first else None
    most = settings.max_steps
    if most is None:
        return by_epochs
    return min(most, by_epochs) if by_epochs else most


def _first_step_of(file: Any, size: int, epoch: int) -> int | None:
    """By halving: epochs only grow in a file."""
    low, high, found = 0, size, None
    while high - low > LINE_BYTES:
        middle = (low + high) // 2
        step = next((one for one in _from(file, middle, 2 * LINE_BYTES) if "epoch" in one), None)
        if step is not None and int(step["epoch"]) < epoch:
            low = middle
        else:
            high = middle
    for one in _from(file, low - LINE_BYTES, 4 * LINE_BYTES):
        if one.get("kind") == "step" and int(one["epoch"]) == epoch:
            found = int(one["step"])
            break
    return found


def _from(file: Any, offset: int, count: int | None = None) -> list[dict[str, Any]]:
    """The records after `offset`; the first may begin in its middle, the last be half written."""
    file.seek(max(offset, 0))
    records = []
    for line in file.read(-1 if count is None else count).splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
