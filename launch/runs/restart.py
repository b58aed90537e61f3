"""Decide whether a failed run restarts, and how: the same for every launcher.

As with torchrun, a new attempt follows any failure: a worker or a node was lost, or a program
failed, perhaps for a temporary reason. There is no new attempt if somebody stopped the run, or if
its settings are wrong. After three attempts in a row without progress over the earlier ones, the
run is given up. If the progress of a program is unknown, each restart prints how often it has
failed in the same way. All workers restart, with a new port, on the nodes that answer at that time,
because torchrun's own restarts use a store with old addresses
(https://github.com/pytorch/pytorch/issues/135712).
"""

import itertools
import signal
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from launch.deadlines import RESTART_WAITS_FOR_DISK_S
from launch.ends import Kind
from launch.spec import LaunchSpec
from muster import records, run_files
from muster.errors import NO_RETRY, STOPPED, MusterError, UsageError
from muster.orderly_stop import ALSO_STOP, NOTICE, STOP_SIGNALS
from muster.printable import counted
from muster.records import is_count
from muster.writing import read_json

MOST_IDLE = 3
WITHOUT_TORCHRUN = (
    "Muster's trainer restarts without torchrun (as with --workers manual), which is faster"
)
# If a flag is given twice, the last one counts.
RESUMED = ("--resume=auto", "--no-reset-optimizer", "--no-reset-lr-scheduler", "--no-reset-data")
# The exit codes of a job that somebody ended. 137 is not included, since a job that lost a
# worker has it.
BY_SIGNAL = tuple(128 + number for number in (*STOP_SIGNALS, *ALSO_STOP, signal.SIGPIPE))
STOP_CODES = tuple(128 + number for number in (*STOP_SIGNALS, signal.SIGPIPE))
# Done, refused, stopped cleanly, given up, or ended on request: the run does not restart.
FINAL = (0, UsageError.exit_code, STOPPED, NO_RETRY, *STOP_CODES)


class GivenUp(MusterError):
    """More attempts are of no use."""

    exit_code = NO_RETRY


def is_possible(spec: LaunchSpec, code: int) -> bool:
    """Whether a restart is allowed after the attempt of `spec` that ended with this exit code."""
    return spec.attempt < spec.max_restarts and code not in FINAL


def is_due(spec: LaunchSpec, code: int) -> bool:
    """Whether the run restarts after the attempt of `spec` that ended with this exit code.

    Raises:
        GivenUp: the run would restart, but no longer makes progress.
    """
    if not is_possible(spec, code):
        return False
    folders = [*run_files.attempt_folders(spec.run_dir).values(), spec.run_dir]
    if not any(run_files.METRICS.find(folder) for folder in folders):
        return True  # a program without records: its progress is unknown
    steps = [last_step(folder) for folder in folders]
    best = max([0, *steps[:-MOST_IDLE]])
    if len(steps) >= MOST_IDLE and max(steps[-MOST_IDLE:]) <= best:
        raise GivenUp(
            f"{MOST_IDLE} attempts in a row did not get past step {max(steps)}, so the run is not "
            "restarted again"
        )
    return True


def next_attempt(spec: LaunchSpec) -> LaunchSpec:
    """The next attempt, from the last checkpoint; this function prepares its folder.

    Muster's trainer then starts without torchrun, which would import torch once more on each node.
    A line is printed if this changes how the trainer starts.
    """
    run_files.archive_attempt(spec.run_dir, spec.attempt)
    again = replace(with_resume_flags(spec, spec.run_dir), attempt=spec.attempt + 1)
    if not spec.program.takes_resume or spec.workers != "torchrun":
        return again
    print(WITHOUT_TORCHRUN, flush=True)
    return replace(again, workers="manual")


def last_attempt(spec: LaunchSpec) -> int:
    """The run's last attempt, from 0; an earlier leader may have made more than `spec` shows.

    `spec` comes from the run's submission, or from the last time that its job was requeued.
    """
    earlier = run_files.attempt_folders(spec.run_dir)
    return max(spec.attempt, *(attempt + 1 for attempt in earlier), 0)


def announcement(spec: LaunchSpec, num_nodes: int) -> str:
    """The line printed when an attempt starts."""
    takes_resume = spec.program.takes_resume
    action = "continuing from the last checkpoint" if takes_resume else "starting again"
    which = f"attempt {spec.attempt_number} of at most {spec.max_restarts + 1}"
    return f"{which}: {action} on {counted(num_nodes, 'node')}"


def pause_s(run_dir: Path) -> float:
    """How long the next attempt waits; on a full disk, it would fail again immediately."""
    end = read_json(run_files.EXIT.path(run_dir))
    # there may have been no space for the record
    is_full = end is None or end.get("cause") == Kind.FULL.word
    return RESTART_WAITS_FOR_DISK_S if is_full else 0.0


def count_same_failures(run_dir: Path) -> int:
    """How many attempts in a row, up to the last one, have failed in the same way."""
    folders = run_files.attempt_folders(run_dir).values()
    ends = [read_json(run_files.EXIT.path(folder)) or {} for folder in (*folders, run_dir)]
    ways = [(end.get("cause"), end.get("rank"), end.get("message")) for end in ends if end]
    return len(list(itertools.takewhile(lambda way: way == ways[-1], reversed(ways))))


def last_step(run_dir: Path) -> int:
    """The last step that any rank of this attempt has recorded; 0 if there is none."""
    files = run_files.METRICS.find(run_dir)
    rows = [row for path in files for row in records.last_objects(path)]
    steps = [row["step"] for row in rows if is_count(row.get("step"))]
    return max(steps, default=0)


def with_resume_flags(spec: LaunchSpec, run_dir: Path) -> LaunchSpec:
    """`spec` with the flags to continue from its newest checkpoint, if its program has such flags.

    Without a checkpoint, `spec` is unchanged: the run starts as its first attempt did, and not from
    a checkpoint that another run has left in the same folder.
    """
    named = spec.env.get("MUSTER_CHECKPOINTS")
    folder = Path(named) if named else run_files.CHECKPOINTS.path(run_dir)
    if not spec.program.takes_resume or not has_checkpoint(folder, [spec.run_id]):
        return spec
    argv = dict.fromkeys((*spec.program.argv, *RESUMED))
    return replace(spec, program=replace(spec.program, argv=tuple(argv)))


def has_checkpoint(folder: Path, run_ids: Collection[str]) -> bool:
    """Whether one of these runs has completed a checkpoint in `folder`."""
    whole = (path.with_name("state.json") for path in folder.glob("step_*/manifest.json"))
    # its files may be being removed at this moment
    return any((read_json(path) or {}).get("run_id") in run_ids for path in whole)


def stopped_for_notice(run_dir: Path) -> bool:
    """Whether the workers stopped cleanly because their time was over."""
    path = run_files.STOPPED.path(run_dir)
    return (records.read(run_files.STOPPED, path) or {}).get("why") == NOTICE
