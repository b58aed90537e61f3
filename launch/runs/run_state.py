"""Find out what a run is doing, from its folder, its processes and its scheduler; and end it.

This works even after the launching terminal is closed. Each launcher provides a watcher for its
runs. Without a scheduler, the watcher looks at the process that leads the run. The process that has
submitted a job follows it in the same way (`Submission`).
"""

import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from configs import console, plugins
from launch.deadlines import JOB_ENDS_AFTER_GRACE_S, JOB_ENDS_TICK_S, JOB_WATCHED_EVERY_S
from launch.ends import state_word
from launch.runs import run_record
from launch.runs.log_tail import Follower
from launch.spec import LaunchSpec
from muster.errors import STOPPED, MusterError
from muster.printable import on_one_line
from muster.status import Status

# What a submitted run waits for, by its state; a reason may follow.
WAITS_FOR = {
    "pending": "waiting in the queue",
    "running": "workers are importing and loading; no output yet",
}
CANCELLED = 128 + signal.SIGTERM

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class RunStatus(Status):
    """What a run is doing and, once it is over, how it ended: as recorded, or as inferred."""

    end: Record | None = None


class LeaderWatcher:
    """Watches runs that end with the process that leads them.

    `job` and `end` are the records in the run folders.
    """

    def state(self, run_dir: Path, job: Record, end: Record | None) -> RunStatus:
        """The state of a run."""
        if end is not None:
            return state_after(end)
        if job["host"] != socket.gethostname():
            return RunStatus("elsewhere", False, f"led by process {job['pid']} on {job['host']}")
        if _leader(job) is not None:
            return RunStatus("running", False, f"led by process {job['pid']}")
        why = "its launcher ended without a record: it was killed, or its disk was full"
        return RunStatus("lost", True, f"{why}; its workers ended with it")

    def look_at(self, jobs: Sequence[Record]) -> None:
        """Ask about all of these jobs in one request; for processes, there is nothing to ask."""

    def stop(self, run_dir: Path, job: Record, say: Callable[[str], None]) -> None:
        """Ask a run to end; it ends some time later.

        Raises:
            MusterError: this cannot be done from here.
        """
        leader = _leader(job)
        if leader is None:
            raise MusterError(
                f"{run_dir.name} is led by process {job['pid']} on {job['host']}"
                "\ntip: run muster jobs cancel there"
            )
        leader.send_signal(signal.SIGTERM)


class Watchers(dict[str, LeaderWatcher]):
    """The watcher of each launcher; a caller that asks often keeps this object.

    If only another checkout or package has the launcher, its runs get a `LeaderWatcher`, since the
    process that leads them is known.
    """

    def __missing__(self, launcher: str) -> LeaderWatcher:
        kind: Callable[[], LeaderWatcher] = LeaderWatcher
        if plugins.is_known("launch.launchers", launcher):
            try:
                kind = plugins.load("launch.launchers", launcher).watcher
            except Exception as error:  # noqa: BLE001  # another package's, which may be broken
                print(f"note: {launcher}: {error}", file=sys.stderr)
        self[launcher] = kind()
        return self[launcher]


def states_of(run_dirs: Sequence[Path], watchers: Watchers) -> list[RunStatus]:
    """The states of these runs, with one question to each scheduler."""
    jobs_of: dict[str, list[Record]] = {}
    for run_dir in run_dirs:
        end = run_record.read_end(run_dir)
        job = run_record.read_job(run_dir)
        if job is not None and (end is None or end["code"] != 0):
            jobs_of.setdefault(job["launcher"], []).append(job)
    for launcher, jobs in jobs_of.items():
        watchers[launcher].look_at(jobs)
    return [state_of(run_dir, watchers) for run_dir in run_dirs]


def state_of(
    run_dir: Path, watchers: Watchers | None = None, last_job: Record | None = None
) -> RunStatus:
    """The state of the run in `run_dir`.

    `last_job`: the last known record of its leader, used if the record cannot be read.
    """
    end = run_record.read_end(run_dir)
    job = run_record.read_job(run_dir) or last_job
    watchers = Watchers() if watchers is None else watchers
    if job is not None and (end is None or end["code"] != 0):
        state = watchers[job["launcher"]].state(run_dir, job, end)
    elif end is not None:
        state = state_after(end)
    else:
        state = RunStatus("unknown", True, "started by hand, or never started")
    if end is None and state.is_over and run_record.read_end(run_dir) is not None:
        return state_of(run_dir, watchers, last_job)  # the run has ended during this look
    if end is None and state.word in ("lost", "unknown") and state.is_over:
        why = run_record.why_unreadable(run_dir)
        state = RunStatus("unreadable", True, why) if why else state
    is_lost = state.is_over and state.end is None and state.word != "unknown"
    return replace(state, end=unrecorded_end(state)) if is_lost else state


@dataclass(frozen=True)
class Submission:
    """A job that a scheduler has accepted.

    A leader inside the job leads the run, and it alone records how the run ends. The process that
    has submitted the job may follow it.
    """

    job_id: str
    cluster: str | None  # the cluster on which `job_id` is the job's number
    watcher: LeaderWatcher  # reports the state of the job

    def follow(self, spec: LaunchSpec) -> RunStatus:
        """Print what the job does and its workers' output until it is over; return its last state.

        Raises:
            KeyboardInterrupt: after printing that the job continues.
        """
        try:
            return self._follow(spec)
        except KeyboardInterrupt:
            cancel = f"muster jobs cancel {spec.run_id}"
            print(f"\njob {self.job_id} continues; to end it: {cancel}", file=sys.stderr)
            raise

    def _follow(self, spec: LaunchSpec) -> RunStatus:
        """See `follow`; while the scheduler does not answer, the job counts as not ended."""
        follower = Follower(spec.run_dir, prefixes=True)
        job: Record = {
            "launcher": "",
            "job_id": self.job_id,
            "cluster": self.cluster,
            **(run_record.read_job(spec.run_dir) or {}),
        }
        watchers = Watchers({str(job["launcher"]): self.watcher})
        printed = ""
        was_over = False
        while True:
            state = state_of(spec.run_dir, watchers, job)
            if state.word != printed and not spec.quiet:
                printed = state.word
                job_id = job["job_id"]
                print(f"job {job_id}: {on_one_line(_text(state, job_id))}", flush=True)
                waits_for = WAITS_FOR.get(state.word, f"job {job['job_id']}: {state.word}")
                console.update_status(on_one_line(f"{waits_for} {state.detail.partition('; ')[2]}"))
            follower.nodes = run_record.nodes_of_ranks(spec.run_dir)
            follower.poll()
            # the record of the end may arrive here after the scheduler's answer
            if state.is_over and (was_over or run_record.read_end(spec.run_dir) is not None):
                follower.poll(last=True)
                return state
            was_over = state.is_over
            time.sleep(JOB_WATCHED_EVERY_S)


def _text(state: RunStatus, job: str) -> str:
    """The state's word, followed by a reason if the state of the job is not known."""
    is_known = state.is_over or state.word not in ("unknown", "elsewhere")
    return state.word + ("" if is_known else state.detail.removeprefix(f"job {job}"))


def is_led(run_dir: Path) -> bool:
    """Whether the run's leader is alive on this machine, and so may restart the run."""
    job = run_record.read_job(run_dir)
    return job is not None and _leader(job) is not None


def cancel(run_dir: Path, say: Callable[[str], None]) -> None:
    """End the run and wait until it has ended; a run that is over is not changed.

    Raises:
        UsageError: the record that names its process or job belongs to another user.
        MusterError: the run is led from another machine or cluster, or does not end.
    """
    watchers = Watchers()
    state = state_of(run_dir, watchers)
    job = run_record.own_job(run_dir)
    if state.is_over or job is None:
        say(f"{run_dir.name} has already ended: {state.word}")
        return
    before = run_record.read_end(run_dir)
    watchers[job["launcher"]].stop(run_dir, job, say)
    patience_s = run_record.stop_grace_s(run_dir) + JOB_ENDS_AFTER_GRACE_S
    deadline = time.monotonic() + patience_s
    state = state_of(run_dir, watchers)
    while not state.is_over and run_record.read_end(run_dir) == before:
        if time.monotonic() > deadline:
            raise MusterError(
                f"{run_dir.name} has not ended after {patience_s:.0f} s: {state.word}"
            )
        time.sleep(JOB_ENDS_TICK_S)
        state = state_of(run_dir, watchers)
    if run_record.read_end(run_dir) is None:  # a job that never began to run, or lost its leader
        end = state.end or {}
        is_cancelled = end.get("code") == CANCELLED
        message = end["message"] if is_cancelled else "cancelled before it began"
        run_record.end(run_dir, CANCELLED, message)
    say(f"{run_dir.name}: {state_after(run_record.read_end(run_dir) or {'code': CANCELLED}).word}")


def state_after(end: Record) -> RunStatus:
    """The state of a run whose end has this record."""
    word = state_word(end["code"], end.get("cause", ""))
    if word == "done":
        return RunStatus(word, True, end=end)
    if end["code"] == STOPPED:
        return RunStatus(word, True, str(end["message"]), end=end)
    words = str(end.get("message", "")).strip().rpartition("\n")[2]
    code = f"exit code {end['code']}"
    words = words.removeprefix("error: ")
    return RunStatus(word, True, words if words.endswith(code) else f"{code}: {words}", end=end)


def unrecorded_end(state: RunStatus) -> Record:
    """The end of a run that no process has recorded and no scheduler can explain."""
    return run_record.end_record(1, f"{state.word}; {state.detail}")


def _leader(job: Record) -> Any:
    """The process that leads the run, if it runs here and matches the record."""
    import psutil

    try:
        process = psutil.Process(int(job["pid"]))
        is_same = run_record.is_same_process(process.pid, job)
        is_alive = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if is_same and is_alive and job["host"] == socket.gethostname() else None
