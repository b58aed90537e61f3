"""Describe a run that is not over, from its folder alone."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launch.deadlines import RUN_SEEMS_SILENT_S
from launch.runs.run_record import changed_at_ns
from launch.runs.run_state import RunStatus
from launch.runs.watching.step_progress import checkpoint, settings_of, step_progress
from muster import records, run_files
from muster.printable import counted, duration

SUSPENDED = "suspended"  # Slurm's word for a job whose processes are stopped
SILENT_STEPS = 10  # a run that records no new step for this many steps' time is reported


def lines(run_dir: Path, state: RunStatus) -> Iterator[str]:
    """What the run is doing, and its expected end; nothing for a run that is over."""
    if state.is_over:
        return
    if state.notes:
        yield from state.notes
        return
    settings = settings_of(run_dir)
    progress = step_progress(run_dir)
    if progress is None:
        yield _before_steps(run_dir, has_records=settings is not None)
        return
    yield _pace(progress)
    if settings is not None:
        saved = checkpoint(run_dir, settings)
        if saved["step"] is not None:
            yield f"last checkpoint after step {saved['step']}, {duration(saved['age_s'])} ago"
        elif saved["wanted"]:
            yield "no checkpoint yet"
    is_silent = progress["silent_s"] > max(RUN_SEEMS_SILENT_S, SILENT_STEPS * progress["step_s"])
    if is_silent and state.word != SUSPENDED:
        yield (
            f"no step recorded for {duration(progress['silent_s'])}: it is evaluating, writing, or "
            "hanging; muster jobs stacks shows where each rank is"
        )


def one_line(run_dir: Path, state: RunStatus) -> str:
    """What the run is doing, in one line of a table; or how it ended."""
    if state.is_over:
        return state.detail
    words = list(lines(run_dir, state))
    return words[0] if state.notes else "; ".join(words)


def pace(step_s: float) -> str:
    """The speed of a run whose steps take `step_s` seconds."""
    return (
        f"{step_s:.3g} s per step"
        if step_s >= 1
        else f"{1 / max(step_s, 1e-9):.3g} steps per second"
    )


def _pace(progress: Mapping[str, Any]) -> str:
    """The run's step, its speed by the median of the last steps, and the time left."""
    total = progress["total"]
    step_s = progress["step_s"]
    left_s = progress["left_s"]
    step = f"step {progress['step']}" + (f" of {total}" if total else "")
    left = "time left unknown" if left_s is None else f"{duration(left_s)} left"
    return f"{step}, {pace(step_s)}, {left}"


def _before_steps(run_dir: Path, *, has_records: bool) -> str:
    """The phase before the first step: nodes connect, workers start, import and load data."""
    paths = run_files.AGENT.find(run_dir)
    agents = [records.read(run_files.AGENT, path) or {} for path in paths]
    began_ns = map(changed_at_ns, paths)
    if not agents:
        meeting = records.read(run_files.AWAITED_NODES, run_files.AWAITED_NODES.path(run_dir)) or {}
        since_s = time.time() - float(meeting.get("since_unix_s", time.time()))
        if text := meeting.get("text"):
            return f"nodes are connecting: node 0 has been {text} for {duration(since_s)}"
        return "its nodes are starting or connecting: none of them has started workers yet"
    ranks = sum(len(agent.get("ranks", ())) for agent in agents)
    count = counted(ranks, "worker")
    nodes = counted(len(agents), "node")
    after = f"started {duration(time.time() - max(began_ns) / 1e9)} ago"
    if has_records:
        return f"{count} on {nodes} {after}, no step yet: importing, or loading model and data"
    return f"{count} on {nodes} {after}; this program does not record steps"
