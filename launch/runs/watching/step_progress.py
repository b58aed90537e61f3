"""Measure a run's progress from the ends of a few files, however long those are."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from muster import records, run_files
from muster.records import STEP, fits

WINDOW = 20  # steps for the rate
NEVER = "never"


def step_progress(run_dir: Path) -> dict[str, Any] | None:
    """The last step that rank 0 has on record; None: there is none.

    `step_s` is the median of the last steps, evaluation and checkpoints left out; `silent_s` counts
    since anything was put on record; `left_s` is how long steps take to the last one at this pace.
    The latter and `total` are None where that is not known.
    """
    path = run_files.METRICS.path(run_dir, rank=0)
    steps = [
        one
        for one in records.last_objects(path)  # one of another version may lack what is needed
        if one.get("kind") == "step" and fits(one, STEP)
    ]
    if not steps:
        return None
    last = steps[-1]
    silent_s = 0.0
    with suppress(OSError):  # moved in the meantime
        silent_s = max(time.time() - path.stat().st_mtime, 0.0)
    step, times = int(last["step"]), sorted(float(one["step_s"]) for one in steps[-WINDOW:])
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
    """The run's last checkpoint, where its folder is seen from here, and whether one is wanted."""
    folder = settings.get("checkpoint_dir") or run_files.CHECKPOINTS.path(run_dir)
    steps: dict[int, Path] = {}
    with suppress(OSError, TypeError, ValueError):  # a folder that nothing can be
        paths = [path for path in Path(folder).glob("step_*") if path.name[5:].isdecimal()]
        steps = {int(path.name[5:]): path for path in paths}
    last, age_s = max(steps, default=None), 0.0
    if last is not None:
        with suppress(OSError):  # removed, since another one is newer
            age_s = max(time.time() - steps[last].stat().st_mtime, 0.0)
    wanted = str(settings.get("checkpoint_every", NEVER)) != NEVER
    return {"wanted": wanted, "step": last, "age_s": age_s}


def settings_of(run_dir: Path) -> dict[str, Any] | None:
    """The settings of a run of our own trainer; None for another program, or if unknown."""
    try:
        found = yaml.safe_load(run_files.CONFIG.path(run_dir).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) and "task" in found else None
