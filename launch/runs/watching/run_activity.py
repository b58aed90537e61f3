"""What a run that is not over is doing, in words, from its folder alone."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from launch.runs.run_state import State
from launch.runs.watching.durations import duration
from launch.runs.watching.step_progress import (
    Checkpoints,
    StepProgress,
    checkpoints,
    settings_of,
    step_progress,
)
from muster import run_files
from muster.writing import read_json

SILENT_S = 30.0  # without a record, and
SILENT_STEPS = 10  # without one for so many steps: then it is worth a word


def lines(run_dir: Path, state: State) -> Iterator[str]:
    """What the run is doing, and until when; nothing of one that is over."""
    if state.over:
        return
    if state.notes:
        yield from state.notes
        return
    settings = settings_of(run_dir)
    progress = step_progress(run_dir)
    if progress is None:
        yield from _before_steps(run_dir, has_records=settings is not None)
        return
    yield f"{pace(progress)}, {time_left(progress)}"
    if settings is not None:
        saved = checkpoints(run_dir, settings)
        if saved.wanted or saved.step is not None:
            yield last_checkpoint(saved)
    if is_silent(progress):
        yield (
            f"no step is on record for {duration(progress.silent_s)}: it evaluates, writes, or "
            "hangs; muster jobs stacks says where each rank is"
        )


def brief(run_dir: Path, state: State) -> str:
    """The same in a few words, for a line of a table."""
    if state.over or state.notes:
        return state.notes[0] if state.notes and not state.over else state.detail
    settings = settings_of(run_dir)
    progress = step_progress(run_dir)
    if progress is None:
        return next(_before_steps(run_dir, has_records=settings is not None))
    place = f"step {progress.step}" + (f" of {progress.total}" if progress.total else "")
    words = [place, pace(progress)]
    if progress.left_s is not None:
        words.append(time_left(progress))
    if settings is not None and (saved := checkpoints(run_dir, settings)).step is not None:
        words.append(f"checkpoint {duration(saved.age_s)} ago")
    if is_silent(progress):
        words.append(f"no step for {duration(progress.silent_s)}")
    return ", ".join(words)


def pace(progress: StepProgress) -> str:
    """How fast it goes, by the median of its last steps."""
    if progress.step_s >= 1:
        return f"{progress.step_s:.3g} s per step"
    return f"{1 / max(progress.step_s, 1e-9):.3g} steps per second"


def time_left(progress: StepProgress) -> str:
    """Until its last step, at this pace."""
    if progress.left_s is None:
        return "time left not known"
    return f"{duration(progress.left_s)} left"


def last_checkpoint(saved: Checkpoints) -> str:
    """Its last checkpoint, and how much would be lost without another one."""
    if saved.step is None:
        return "no checkpoint yet"
    return f"last checkpoint after step {saved.step}, {duration(saved.age_s)} ago"


def is_silent(progress: StepProgress) -> bool:
    """Whether no step came for longer than is usual."""
    return progress.silent_s > max(SILENT_S, SILENT_STEPS * progress.step_s)


def _before_steps(run_dir: Path, *, has_records: bool) -> Iterator[str]:
    """Nodes meet, then workers start, import what they need and load their data."""
    agents, began = [], 0.0
    for path in run_files.AGENT.find(run_dir):
        with suppress(OSError):  # put aside as we look
            began = max(began, path.stat().st_mtime)
            agents.append(read_json(path) or {})
    if not agents:
        meeting = read_json(run_files.MEETING.path(run_dir)) or {}
        since_s = time.time() - float(meeting.get("since_unix_s", time.time()))
        if text := meeting.get("text"):
            yield f"nodes connect: node 0 is {text}, {duration(since_s)} ago"
        else:
            yield "its nodes start, or connect: none of them has started workers yet"
        return
    ranks = sum(len(agent.get("ranks", ())) for agent in agents)
    count = f"{ranks} {'worker' if ranks == 1 else 'workers'}"
    nodes = f"{len(agents)} {'node' if len(agents) == 1 else 'nodes'}"
    after = f"started {duration(time.time() - began)} ago"
    if has_records:
        yield f"{count} on {nodes} {after}, and no step yet: they import, and load model and data"
    else:
        yield f"{count} on {nodes} {after}; this program leaves no records of steps"
