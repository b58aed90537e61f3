"""What a run is doing, found from its folder, its processes and its scheduler, and how to end it.

It works after the launching terminal is gone, and without Slurm's accounting.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import STOPPED, MusterError
from launch import registry
from launch.slurm import cluster as slurm_cluster

OVER = frozenset(
    "COMPLETED FAILED CANCELLED TIMEOUT NODE_FAIL OUT_OF_MEMORY PREEMPTED BOOT_FAIL DEADLINE"
    " REVOKED".split()
)
CANCELLED = 128 + signal.SIGTERM
PATIENCE_S = 30.0


@dataclass(frozen=True)
class State:
    """One word for it, whether it is over, and more words where there are any."""

    word: str
    over: bool
    detail: str = ""


def of(run_dir: Path) -> State:
    """The state of the run in `run_dir`."""
    end, job = registry.read_end(run_dir), registry.read_job(run_dir)
    if end is not None:
        return _ended(end)
    if job is None:
        return State("unknown", True, "started by hand, or never")
    if job["launcher"] == "slurm":
        return _in_slurm(str(job["job_id"]))
    if job["host"] != socket.gethostname():
        return State("elsewhere", False, f"led by process {job['pid']} on {job['host']}")
    if _leader(job) is not None:
        return State("running", False, f"led by process {job['pid']}")
    return State("lost", True, "its launcher was killed; its workers ended with it")


def cancel(run_dir: Path, say: Callable[[str], None]) -> None:
    """End the run and stay until it has ended; one that is over is left as it is.

    Raises:
        MusterError: it is led from another machine, or does not end.
    """
    state, job = of(run_dir), registry.read_job(run_dir)
    if state.over or job is None:
        say(f"{run_dir.name} is over already: {state.word}")
        return
    if job["launcher"] == "slurm":
        asked = slurm_cluster.ask(["scancel", str(job["job_id"])], os.environ)
        if asked.returncode:
            raise MusterError(f"scancel {job['job_id']} failed: {asked.stderr.strip()}")
    else:
        leader = _leader(job)
        if leader is None:
            raise MusterError(
                f"{run_dir.name} is led by process {job['pid']} on {job['host']}; cancel it there"
            )
        leader.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while not (state := of(run_dir)).over:
        if time.monotonic() > deadline:
            raise MusterError(
                f"{run_dir.name} has not ended after {PATIENCE_S:.0f} s: {state.word}"
            )
        time.sleep(0.2)
    if registry.read_end(run_dir) is None:  # a job that never began to run
        registry.write_end(run_dir, CANCELLED, "cancelled before it began")
    say(f"{run_dir.name}: {of(run_dir).word}")


def _ended(end: dict[str, Any]) -> State:
    if end["code"] == 0:
        return State("done", True)
    if end["code"] == STOPPED:
        return State("stopped", True, str(end["message"]))
    words = str(end["message"]).strip().splitlines()
    word = "stopped" if end["code"] > 128 else "failed"
    return State(word, True, f"exit code {end['code']}: {words[-1] if words else ''}")


def _in_slurm(job_id: str) -> State:
    try:
        state = slurm_cluster.state(job_id, os.environ)
    except (MusterError, subprocess.SubprocessError) as error:
        return State("unknown", False, f"job {job_id}; {error}")
    if state is None:
        return State(
            "lost", True, f"Slurm has forgotten job {job_id}, and nothing says how it ended"
        )
    why = slurm_cluster.reason(job_id, os.environ) if state == "PENDING" else ""
    return State(state.lower(), state in OVER, " ".join(filter(None, (f"job {job_id}", why))))


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
