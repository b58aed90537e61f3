"""Describe a run that is not over, from its folder alone."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launch.runs.run_state import State
from launch.runs.watching.durations import duration
from launch.runs.watching.step_progress import (
    StepProgress,
    checkpoints,
    settings_of,
    step_progress,
)
from muster import run_files
from muster.writing import read_json

SILENT_S = 30.0  # without a record, and
SILENT_STEPS = 10  # without one for so many steps: then it is reported


def lines(run_dir: Path, state: State) -> Iterator[str]:
    """What the run is doing, and its expected end; nothing for a run that is over."""
    if state.over:
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
        saved = checkpoints(run_dir, settings)
        if saved.step is not None:
            yield f"last checkpoint after step {saved.step}, {duration(saved.age_s)} ago"
        elif saved.wanted:
            yield "no checkpoint yet"
    if progress.silent_s > max(SILENT_S, SILENT_STEPS * progress.step_s):
        yield (
            f"no step is on record for {duration(progress.silent_s)}: it evaluates, writes, or "
            "hangs; muster jobs stacks says where each rank is"
        )


def brief(run_dir: Path, state: State) -> str:
    """The same in one line for a table; or how the run ended."""
    if state.over:
        return state.detail
    words = list(lines(run_dir, state))
    return words[0] if state.notes else "; ".join(words)


def _pace(progress: StepProgress) -> str:
    """Its step, its speed by the median of the last steps, and the expected end."""
    step = f"step {progress.step}" + (f" of {progress.total}" if progress.total else "")
    if progress.step_s >= 1:
        pace = f"{progress.step_s:.3g} s per step"
    else:
        pace = f"{1 / max(progress.step_s, 1e-9):.3g} steps per second"
    left_s = progress.left_s
    left = "time left not known" if left_s is None else f"{duration(left_s)} left"
    return f"{step}, {pace}, {left}"


def _before_steps(run_dir: Path, *, has_records: bool) -> str:
    """The phase before the first step: nodes meet, workers start, import and load data."""
    agents, began = [], 0.0
    for path in run_files.AGENT.find(run_dir):
        with suppress(OSError):  # moved in the meantime
            began = max(began, path.stat().st_mtime)
            agents.append(read_json(path) or {})
    if not agents:
        meeting = read_json(run_files.MEETING.path(run_dir)) or {}
        since_s = time.time() - float(meeting.get("since_unix_s", time.time()))
        if text := meeting.get("text"):
            return f"nodes connect: node 0 is {text}, {duration(since_s)} ago"
        return "its nodes start, or connect: none of them has started workers yet"
    ranks = sum(len(agent.get("ranks", ())) for agent in agents)
    count = f"{ranks} {'worker' if ranks == 1 else 'workers'}"
    nodes = f"{len(agents)} {'node' if len(agents) == 1 else 'nodes'}"
    after = f"started {duration(time.time() - began)} ago"
    if has_records:
        return f"{count} on {nodes} {after}, and no step yet: they import, and load model and data"
    return f"{count} on {nodes} {after}; this program leaves no records of steps"
