"""The job of a run: which run it leads, the notice of its end, and whether it is requeued.

User input never goes through the options or the environment of a scheduler's commands, where a
comma or a quote would change its meaning. It is read from a file in the run folder.

Only the leader asks the scheduler to requeue the job. If a node is lost, even the leader's, a
scheduler such as Slurm requeues the job by itself.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from launch.deadlines import SHORT_JOB_S
from launch.ends import Kind
from launch.nodes.channel import running_s
from launch.nodes.scheduler import SchedulerJob
from launch.runs import node_history, restart, run_record
from launch.spec import LaunchSpec
from muster import records, run_files
from muster.errors import STOPPED, MusterError, UsageError
from muster.orderly_stop import NOTICE_SIGNALS
from muster.writing import read_json, write_json

MAX_REQUEUES = "MUSTER_MAX_REQUEUES"  # a variable of the environment
DEFAULT_MAX_REQUEUES = "3"


class Notice:
    """Whether the job's time is nearly over.

    That is so once the scheduler's signal has come. In a short job it is also so once half of the
    time that was left at the start has passed.
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

    It has the keys `nproc` (workers of each node), `network` and `master_port`, among others. If
    the job is not the run's own, the key `step` has the name of the run's steps in the job.
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
            f"{path} not found on this node: the run folder must be on a file system that all "
            "nodes share\ntip: choose one with --logs-dir"
        )
    secret = run_files.SECRETS.path(run_dir)
    secrets = json.loads(secret.read_text(encoding="utf-8")) if secret.exists() else {}
    try:
        if job.get("queues", 1) != 1:
            raise msgspec.ValidationError("it is one of several jobs of the same run")
        return LaunchSpec.from_json({**job.get("spec", {}), "secrets": secrets}), job
    except msgspec.ValidationError as error:
        raise UsageError(
            "this job was submitted by another version of Muster"
            f"\ntip: submit it again ({path}: {error})"
        ) from None


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


def refuse_too_many(current: SchedulerJob) -> None:
    """Refuse a job that is restarted again and again (bad nodes, preemption).

    Raises:
        MusterError: this job was restarted too often.
    """
    if current.attempt > max_requeues():
        raise MusterError(
            f"requeued {current.attempt} times, but {MAX_REQUEUES} allows only {max_requeues()}"
        )


def excludes_bad_nodes(job: Mapping[str, Any]) -> bool:
    """Whether --exclude auto was given."""
    return node_history.AUTO in (job.get("exclude") or "").split(",")


def requeue_if_useful(
    run_dir: Path, code: int, current: SchedulerJob, job: Mapping[str, Any]
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
    if lost := current.silent_nodes(current.nodes):
        _requeue(f"no answer from {', '.join(lost)}", current, job)


def may_be_requeued(run_dir: Path, end: Mapping[str, Any]) -> bool:
    """Whether the job may go on after this end; see `requeue_if_useful`."""
    return end.get("cause") == Kind.NODE_LOST.word or restart.stopped_for_notice(run_dir)


def _requeue(reason: str, current: SchedulerJob, job: Mapping[str, Any]) -> None:
    """Requeue the job, unless it was requeued often enough already, or was cancelled."""
    if not current.is_running():
        return
    if current.attempt >= max_requeues():
        _say(
            f"error: {reason} after {current.attempt} requeues; {MAX_REQUEUES} allows "
            f"{max_requeues()}\ntip: submit it again with --resume, or ask for more with --time"
        )
        return
    _say(f"{reason}: requeueing job {current.name} to continue from the last checkpoint")
    excluded = None
    if excludes_bad_nodes(job):
        excluded = node_history.excluded(job["exclude"], lambda: current.cluster or "") or ""
    try:
        current.requeue(excluded)
    except MusterError as error:
        _say(f"error: the job was not requeued: {error}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_of_job(logs_root: Path, current: SchedulerJob) -> Path | None:
    """The folder of the run that this job began before the scheduler restarted it.

    Other users may have runs in the same folder; theirs do not count, whatever their records say.
    A cluster may number its jobs from 1 again, so the latest run with this number counts.
    """
    runs = {}
    own = [current.launcher, current.name, current.cluster]
    for path in logs_root.glob(f"*/{run_files.JOB.pattern}"):
        try:
            job = run_record.own_job(path.parent) or {}
        except UsageError:
            continue
        if [job.get(name) for name in ("launcher", "job_id", "cluster")] == own:
            runs[float(job["started_unix_s"])] = path.parent
    return runs[max(runs)] if runs else None
