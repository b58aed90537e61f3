"""How far a run has come, from the ends of a few of its files, however long those are."""

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import cli
from configs.settings.train import TrainConfig
from muster import run_files
from muster.errors import MusterError
from muster.writing import read_json

WINDOW = 20  # steps that the rate is taken over
NEVER = "never"
OF_A_STEP = {"step", "epoch", "loss", "step_s"}  # what is said of one


@dataclass(frozen=True)
class StepProgress:
    """The last step that rank 0 has on record."""

    step: int
    epoch: int
    loss: float
    step_s: float  # the median of the last steps, evaluation and checkpoints left out
    silent_s: float  # since anything was put on record
    total: int | None = None  # steps of the whole run; None: not known

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


def step_progress(run_dir: Path) -> StepProgress | None:
    """How far the run is; None: no step is on record."""
    path = run_files.METRICS.path(run_dir, rank=0)
    records = last_steps(path)
    if not records:
        return None
    last = records[-1]
    try:
        changed_s = path.stat().st_mtime
    except OSError:  # put aside as we look
        return None
    times = sorted(float(one["step_s"]) for one in records[-WINDOW:])
    return StepProgress(
        step=int(last["step"]),
        epoch=int(last["epoch"]),
        loss=float(last["loss"]),
        step_s=times[len(times) // 2],
        silent_s=max(time.time() - changed_s, 0.0),
        total=(read_json(run_files.START.path(run_dir)) or {}).get("total_steps"),
    )


def last_steps(path: Path) -> list[dict[str, Any]]:
    """The last records of steps of one rank; none where they are put aside as we look.

    One of another version may lack what is needed.
    """
    return [
        one
        for one in run_files.last_objects(path)
        if one.get("kind") == "step" and one.keys() >= OF_A_STEP
    ]


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
