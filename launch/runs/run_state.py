"""What a run is doing, found from its folder, its processes and its scheduler, and how to end it.

It works after the launching terminal is gone, and without Slurm's accounting.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.runs import run_record
from launch.slurm.job_state import FORGOTTEN, UNKNOWN, WAITING, Watcher, act_on, patiently
from muster.errors import STOPPED, MusterError

CANCELLED = 128 + signal.SIGTERM
PATIENCE_S = 30.0


@dataclass(frozen=True)
class State:
    """One word for it, whether it is over, and more words where there are any."""

    word: str
    over: bool
    detail: str = ""


def of(run_dir: Path, watcher: Watcher | None = None) -> State:
    """The state of the run in `run_dir`; one who asks often does so with one `watcher`."""
    end, job = run_record.read_end(run_dir), run_record.read_job(run_dir)
    if end is not None and (job is None or job["launcher"] != "slurm" or end["code"] == 0):
        return _ended(end)
    if job is None:
        return State("unknown", True, "started by hand, or never")
    if job["launcher"] == "slurm" and job["job_id"] != run_record.NOT_YET:
        state = _in_slurm(run_dir, job, watcher or Watcher(os.environ))
        return _ended(end) if end is not None and state.over else state  # else it is requeued
    if job["host"] != socket.gethostname():
        return State("elsewhere", False, f"led by process {job['pid']} on {job['host']}")
    if _leader(job) is not None:
        word = "submitting" if job["launcher"] == "slurm" else "running"
        return State(word, False, f"led by process {job['pid']}")
    return State("lost", True, "its launcher was killed; its workers ended with it")


def cancel(run_dir: Path, say: Callable[[str], None]) -> None:
    """End the run and stay until it has ended; one that is over is left as it is.

    Raises:
        MusterError: it is led from another machine or cluster, or does not end.
    """
    watcher = Watcher(os.environ)
    state, job = of(run_dir, watcher), run_record.read_job(run_dir)
    if state.over or job is None:
        say(f"{run_dir.name} is over already: {state.word}")
        return
    before = run_record.read_end(run_dir)
    if job["launcher"] == "slurm":
        _cancel_job(run_dir, watcher, say)
    else:
        _signal_leader(run_dir, job)
    deadline = time.monotonic() + PATIENCE_S
    while not (state := of(run_dir, watcher)).over and run_record.read_end(run_dir) == before:
        if time.monotonic() > deadline:
            raise MusterError(
                f"{run_dir.name} has not ended after {PATIENCE_S:.0f} s: {state.word}"
            )
        time.sleep(0.2)
    end = run_record.read_end(run_dir)
    if end is None:  # a job that never began to run
        run_record.write_end(run_dir, CANCELLED, "cancelled before it began")
        end = run_record.read_end(run_dir)
    assert end is not None
    say(f"{run_dir.name}: {_ended(end).word}")


def _signal_leader(run_dir: Path, job: dict[str, Any]) -> None:
    leader = _leader(job)
    if leader is None:
        raise MusterError(
            f"{run_dir.name} is led by process {job['pid']} on {job['host']}; cancel it there"
        )
    leader.send_signal(signal.SIGTERM)


def _cancel_job(run_dir: Path, watcher: Watcher, say: Callable[[str], None]) -> None:
    """Once it has its number, which a controller may take its time to give."""
    deadline = time.monotonic() + PATIENCE_S
    while (job := run_record.read_job(run_dir) or {}).get("job_id") == run_record.NOT_YET:
        if time.monotonic() > deadline:
            raise MusterError(
                f"{run_dir.name} is being submitted by process {job['pid']} on {job['host']}; "
                "try again when that has ended"
            )
        if of(run_dir).over:
            return
        time.sleep(0.2)

    def scancel() -> None:
        if elsewhere := _elsewhere(job, watcher):
            raise MusterError(elsewhere)
        act_on(str(job["job_id"]), ["scancel"], os.environ)

    patiently(scancel, say)


def _ended(end: dict[str, Any]) -> State:
    if end["code"] == 0:
        return State("done", True)
    if end["code"] == STOPPED:
        return State("stopped", True, str(end["message"]))
    words = str(end["message"]).strip().splitlines()
    word = "stopped" if end["code"] > 128 else "failed"
    return State(word, True, f"exit code {end['code']}: {words[-1] if words else ''}")


def _in_slurm(run_dir: Path, job: dict[str, Any], watcher: Watcher) -> State:
    job_id = str(job["job_id"])
    try:
        if elsewhere := _elsewhere(job, watcher):
            return State("elsewhere", False, elsewhere)
    except MusterError as error:
        return State("unknown", False, f"job {job_id}; {error}")
    state = watcher.state(job_id, run_record.signs(run_dir))
    if state.name == FORGOTTEN:
        return State(
            "lost", True, f"Slurm has forgotten job {job_id}, and nothing says how it ended"
        )
    attempt = job.get("attempt")
    if attempt is not None and state.restarts > attempt and state.name not in WAITING:
        return State("lost", True, f"job {job_id} goes on as attempt {state.restarts}, another run")
    why = state.reason if state.name in (*WAITING, UNKNOWN) else ""
    detail = "; ".join(filter(None, (f"job {job_id}", why)))
    return State(state.name.lower(), state.is_over, detail)


def _elsewhere(job: dict[str, Any], watcher: Watcher) -> str | None:
    """Where the job is, if not on the cluster that answers here: there its number is another's.

    Raises:
        MusterError: Slurm does not answer, or is not here.
    """
    theirs = job.get("cluster")
    ours = watcher.cluster() if theirs is not None else None
    if theirs == ours:
        return None
    return (
        f"job {job['job_id']} is one of cluster {theirs}, and this is {ours}; "
        f"look after it there, or with SLURM_CLUSTERS={theirs}"
    )


def _leader(job: dict[str, Any]) -> Any:
    """The process that leads the run, if it is still the same one and runs here."""
    import psutil

    try:
        process = psutil.Process(int(job["pid"]))
        same = abs(process.create_time() - float(job["started_unix_s"])) < 0.1
        lives = process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if same and lives and job["host"] == socket.gethostname() else None
