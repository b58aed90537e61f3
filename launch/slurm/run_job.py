"""The job of a run: which run it leads, Slurm's notice of its end, and whether it is requeued.

User input never goes through the options or the environment of sbatch and srun, where a comma or a
quote would change its meaning. It is read from a file of the run folder.

Only the leader asks Slurm to requeue the job. If a node is lost, even the leader's, Slurm requeues
the job by itself, since the job was submitted with --requeue.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from launch.deadlines import SHORT_JOB_S, SLURM_CLOCK_DIFFERS_S
from launch.ends import Kind
from launch.nodes.channel import running_s
from launch.nodes.survey import last_line
from launch.runs import node_history, restart, run_record
from launch.slurm import node_health
from launch.slurm.controller import UNKNOWN, JobState, act_on, ask, job_state, retry_while_silent
from launch.slurm.current_job import CurrentJob
from launch.spec import LaunchSpec
from muster import records, run_files
from muster.errors import STOPPED, MusterError, UsageError
from muster.orderly_stop import NOTICE_SIGNALS
from muster.writing import read_json, write_json

MAX_REQUEUES = "MUSTER_MAX_REQUEUES"  # a variable of the environment
DEFAULT_MAX_REQUEUES = "3"


class Notice:
    """Whether the job's time is nearly over.

    That is so once Slurm's signal has come. In a short job it is so after half of the time, too.
    """

    def __init__(self, ends_unix_s: float | None) -> None:
        for number in NOTICE_SIGNALS:
            signal.signal(number, self._note)
        self._has_come = False
        left_s = float("inf") if ends_unix_s is None else ends_unix_s - time.time()
        self._half_s = running_s() + left_s / 2 if left_s <= SHORT_JOB_S else float("inf")

    def has_come(self) -> bool:
        return self._has_come or running_s() > self._half_s

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True


def write_spec(spec: LaunchSpec, job: Mapping[str, Any]) -> None:
    """Record which run a job leads; `job` has what the leader needs beside the spec.

    Its keys are `nproc` (workers of each node), `network` and `master_port`. If the job is not the
    run's own, the key `step` has the name of the run's steps in it.
    """
    plain = spec.to_json()
    if secrets := plain.pop("secrets"):
        write_json(run_files.SECRETS.path(spec.run_dir), secrets, mode=0o600)
    write_json(run_files.SLURM.path(spec.run_dir), {**job, "spec": plain}, forced=True)


def read_spec(run_dir: Path) -> tuple[LaunchSpec, Mapping[str, Any]]:
    """The spec of the run that the job leads, and the leader's other settings.

    Raises:
        MusterError: this node does not see the run folder.
        UsageError: another version of Muster has written the spec.
    """
    path = run_files.SLURM.path(run_dir)
    job = read_json(path)
    if job is None:
        raise MusterError(
            f"{path} is not there; the run folder must be on a file system that all nodes share: "
            "choose one with --logs-dir"
        )
    secret = run_files.SECRETS.path(run_dir)
    secrets = json.loads(secret.read_text(encoding="utf-8")) if secret.exists() else {}
    try:
        if job.get("queues", 1) != 1:
            raise msgspec.ValidationError("it is one of several jobs for one run")
        return LaunchSpec.from_json({**job["spec"], "secrets": secrets}), job
    except msgspec.ValidationError as error:
        raise UsageError(
            "this job was submitted by another version of Muster; submit it again "
            f"({path}: {error})"
        ) from None


def is_own(run_dir: Path, job: Mapping[str, Any], state: JobState) -> bool | None:
    """Whether the job that Slurm describes by `state` is the job in `job`, the run's record.

    Slurm may give the number to another job later: its counter starts again after its largest
    number, and where Slurm was installed anew. A job that Muster has submitted prints into a
    folder that no other job has. Any other job is recognized by its output file and its start:
    the run's leader started after the job, unless Slurm has restarted the job since then.

    None if the record does not show that: an earlier version of Muster has written it.
    """
    record = records.read(run_files.SLURM, run_files.SLURM.path(run_dir)) or {}
    recorded = record.get("output", "")
    if recorded and not recorded.endswith("/"):
        try:
            start_s = datetime.fromisoformat(state.start).timestamp()
        except ValueError:  # it has not started
            start_s = math.inf
        leader_start_s = float(job.get("started_unix_s", 0.0))
        is_led = state.restarts != "0" or start_s <= leader_start_s + SLURM_CLOCK_DIFFERS_S
        return state.output == recorded and is_led
    folder = recorded or f"{run_files.SUBMITIT.path(run_dir)}/"
    # as given to sbatch, with %% for %, or as Slurm has read it
    if any(path.startswith(folder) for path in (state.output, state.output.replace("%%", "%"))):
        return True
    return False if recorded else None


def step_of(run_dir: Path) -> str | None:
    """The name of the run's steps; None if the run has a job of its own."""
    path = run_files.SLURM.path(run_dir)
    step: str | None = (records.read(run_files.SLURM, path) or {}).get("step")
    return step


def world_size(run_dir: Path) -> int | None:
    """The number of the run's ranks; None if only the job can count the GPUs of its nodes."""
    job = records.read(run_files.SLURM, run_files.SLURM.path(run_dir)) or {}
    counts = job.get("nproc", ())
    are_known = counts and all(isinstance(count, int) for count in counts)
    return sum(counts) if are_known else None


def max_requeues() -> int:
    """How often a job may be requeued.

    Raises:
        UsageError: the variable for it is not a number.
    """
    text = os.environ.get(MAX_REQUEUES, DEFAULT_MAX_REQUEUES)
    if not text.isdecimal():
        raise UsageError(f"{MAX_REQUEUES} is {text!r}, not a number")
    return int(text)


def refuse_too_many(current: CurrentJob) -> None:
    """Refuse a job that Slurm restarts again and again (bad nodes, preemption).

    Raises:
        MusterError: this job was restarted too often.
    """
    if current.attempt > max_requeues():
        raise MusterError(
            f"requeued {current.attempt} times; {MAX_REQUEUES} allows {max_requeues()}"
        )


def avoids_bad(job: Mapping[str, Any]) -> bool:
    """Whether --exclude auto was given."""
    return node_history.AUTO in (job.get("exclude") or "").split(",")


def requeue_if_useful(
    run_dir: Path, code: int, current: CurrentJob, job: Mapping[str, Any]
) -> None:
    """Requeue the job after its run has ended with `code`, if that is useful.

    That is useful if the job's time was over and the workers have stopped cleanly. It is also
    useful if a node does not answer any more.
    """
    if code == STOPPED and restart.stopped_for_notice(run_dir):
        _requeue("out of time", current, job)
        return
    if code in restart.FINAL:
        return
    if lost := node_health.silent_nodes(current.nodes, os.environ):
        _requeue(f"no answer from {', '.join(lost)}", current, job)


def may_be_requeued(run_dir: Path, end: Mapping[str, Any]) -> bool:
    """Whether the job may go on after this end; see `requeue_if_useful`."""
    return end.get("cause") == Kind.NODE_LOST.word or restart.stopped_for_notice(run_dir)


def _requeue(reason: str, current: CurrentJob, job: Mapping[str, Any]) -> None:
    """Requeue the job, unless it was requeued often enough, or is cancelled."""
    if job_state(current.name, os.environ).name not in ("RUNNING", UNKNOWN):
        return
    if current.attempt >= max_requeues():
        _say(
            f"error: {reason} after {current.attempt} requeues; {MAX_REQUEUES} allows "
            f"{max_requeues()}; submit it again with --resume, or ask for more with --time"
        )
        return
    _say(f"{reason}: requeueing job {current.name}, to go on from the last checkpoint")
    requeue = ["scontrol", "requeue"]
    if avoids_bad(job):
        # Slurm changes the nodes of waiting jobs only, but ends this process before the job waits
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        retry_while_silent(lambda: act_on(current.name, requeue, os.environ), _say)
        if avoids_bad(job):
            excluded = node_history.excluded(job["exclude"], lambda: current.cluster or "")
            nodes = f"ExcNodeList={excluded or ''}"
            update = ["scontrol", "update", nodes, f"JobId={current.name}"]
            if (result := ask(update, os.environ)).returncode:
                _say(f"error: --exclude is as before: {last_line(result.stderr)}")
    except MusterError as error:
        _say(f"error: the job is not requeued: {error}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_of_job(logs_root: Path, current: CurrentJob) -> Path | None:
    """The folder of the run that this job began before Slurm restarted it.

    Other users may have runs in the same folder; theirs do not count, whatever their records say.
    A cluster may number its jobs from 1 again, so the latest run with this number counts.
    """
    runs = {}
    own = ["slurm", current.name, current.cluster]
    for path in logs_root.glob(f"*/{run_files.JOB.pattern}"):
        try:
            job = run_record.own_job(path.parent) or {}
        except UsageError:
            continue
        if [job.get(name) for name in ("launcher", "job_id", "cluster")] == own:
            runs[float(job["started_unix_s"])] = path.parent
    return runs[max(runs)] if runs else None
