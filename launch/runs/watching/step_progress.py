"""Measure a run's progress from the ends of a few files, however long the files are."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from muster import records, run_files
from muster.records import fits
from muster.writing import record_data

WINDOW = 20  # steps for the rate
NEVER = "never"
# The fields that are read from a step's record; another version's record may lack them.
STEP = {
    "step": records.is_count,
    "epoch": records.is_whole,
    "loss": (None, records.is_number_or_nan),  # written as null if it is not finite
    "step_s": records.is_number,
}


def step_progress(run_dir: Path) -> dict[str, Any] | None:
    """The last step in rank 0's records; None if there is none.

    `step_s` is the median of the last steps, without evaluation and checkpoints. `silent_s` is the
    time since the last record. `left_s` is the time to the last step at this pace. `left_s` and
    `total` are None if the number of steps is not known.
    """
    path = run_files.METRICS.path(run_dir, rank=0)
    steps = [
        record
        for record in records.last_objects(path)
        if record.get("kind") == "step" and fits(record, STEP)
    ]
    if not steps:
        return None
    last = steps[-1]
    silent_s = 0.0
    with suppress(OSError):  # moved in the meantime
        silent_s = max(time.time() - path.stat().st_mtime, 0.0)
    step = int(last["step"])
    times = sorted(float(record["step_s"]) for record in steps[-WINDOW:])
    total = (records.read(run_files.START, run_files.START.path(run_dir)) or {}).get("total_steps")
    step_s = times[len(times) // 2]
    return {
        "step": step,
        "epoch": int(last["epoch"]),
        "loss": math.nan if last["loss"] is None else float(last["loss"]),
        "step_s": step_s,
        "silent_s": silent_s,
        "total": total,
        "left_s": None if total is None else max(total - step, 0) * step_s,
    }


def checkpoint(run_dir: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The run's last checkpoint that this machine sees, and whether the run makes any."""
    folder = settings.get("checkpoint_dir") or run_files.CHECKPOINTS.path(run_dir)
    steps: dict[int, Path] = {}
    with suppress(OSError, TypeError, ValueError):  # a value that cannot be a folder's path
        paths = [path for path in Path(folder).glob("step_*") if path.name[5:].isdecimal()]
        steps = {int(path.name[5:]): path for path in paths}
    last = max(steps, default=None)
    age_s = 0.0
    if last is not None:
        with suppress(OSError):  # removed in the meantime, since a newer one exists
            age_s = max(time.time() - steps[last].stat().st_mtime, 0.0)
    wanted = str(settings.get("checkpoint_every", NEVER)) != NEVER
    return {"wanted": wanted, "step": last, "age_s": age_s}


def settings_of(run_dir: Path) -> dict[str, Any] | None:
    """The settings of a run of Muster's trainer; None for another program, or if unknown."""
    try:
        settings = yaml.safe_load(record_data(run_files.CONFIG.path(run_dir)).decode())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return settings if isinstance(settings, dict) and "task" in settings else None
