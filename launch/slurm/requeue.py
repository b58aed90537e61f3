"""Whether Slurm is to start a run's own job again: the leader has it do so, and nobody else.

Where a node is lost Slurm does so itself, as the job was submitted with --requeue; also where that
is the node of the leader.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs import cli
from configs.settings.train import TrainConfig
from launch.runs import continuation, run_record
from launch.runs.restart import Outcome
from launch.slurm import node_health
from launch.slurm.allocation import Allocation
from launch.slurm.queue.job_state import UNKNOWN, act_on, job_state, patiently
from muster import run_files
from muster.errors import STOPPED, MusterError, UsageError

MOST = "MUSTER_MAX_REQUEUES"
DEFAULT_MOST = "3"


def most(env: Mapping[str, str]) -> int:
    """How often a job may be requeued.

    Raises:
        UsageError: what is set for that is no number.
    """
    text = env.get(MOST, DEFAULT_MOST)
    if not text.isdecimal():
        raise UsageError(f"{MOST} is {text!r}, not a number")
    return int(text)


def refuse_too_many(allocation: Allocation, env: Mapping[str, str]) -> None:
    """A job that Slurm starts again and again (bad nodes, preemption) must end at some time.

    Raises:
        MusterError: this one has to.
    """
    if allocation.attempt > most(env):
        raise MusterError(f"requeued {allocation.attempt} times; {MOST} allows {most(env)}")


def where_due(run_dir: Path, code: int, hosts: Sequence[str], allocation: Allocation) -> None:
    """Have the job started again after its run has ended with `code`, if that is of use: its time
    was up and the workers have stopped in order, or a node is gone.
    """
    if code == STOPPED and continuation.stopped_for_notice(run_dir):
        _requeue("out of time", allocation)
    elif Outcome(code).is_worth_another:
        answer = node_health.answers(hosts, os.environ)
        if gone := [name for name, is_here in answer.items() if not is_here]:
            _requeue(f"no answer from {', '.join(gone)}", allocation)


def _requeue(why: str, allocation: Allocation) -> None:
    """Unless it has been requeued often enough, or is cancelled."""
    if job_state(allocation.name, os.environ).name not in ("RUNNING", UNKNOWN):
        return
    if allocation.attempt >= most(os.environ):
        _say(
            f"error: {why} after {allocation.attempt} requeues; {MOST} allows "
            f"{most(os.environ)}; submit it again with --resume, or ask for more with --time"
        )
        return
    _say(f"{why}: requeueing job {allocation.name}, to go on from the last checkpoint")
    again = ["scontrol", "requeue"]
    try:
        patiently(lambda: act_on(allocation.name, again, os.environ), _say)
    except MusterError as error:
        _say(f"error: the job is not requeued: {error}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def runs_of_job(logs_root: Path, job_id: str, cluster: str | None) -> tuple[Path, list[str]] | None:
    """Where the last attempt of a Slurm job wrote its checkpoints, and the runs of its attempts."""
    found = []
    for path in logs_root.glob(f"*/{run_files.JOB.pattern}"):
        job = run_record.read_job(path.parent)
        here = job and job["launcher"] == "slurm" and job.get("cluster") in (cluster, None)
        if job and here and job["job_id"] == job_id:
            found.append((float(job["started_unix_s"]), path.parent))
    if not found:
        return None
    found.sort()
    run_dir = found[-1][1]  # a cluster may count its jobs from 1 again
    config = str(run_files.CONFIG.path(run_dir))
    (train,) = cli.parse([TrainConfig], ["--config", config], prog="", description="")
    folder = Path(train.checkpoint_dir or run_files.CHECKPOINTS.path(run_dir)).absolute()
    return folder, [path.name for _, path in found]
