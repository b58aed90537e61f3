"""Run folders as runs leave them, with a leader of this machine, or with a job of Slurm."""

import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from launch.runs import run_record
from muster.errors import STOPPED
from tests.commands import call
from tests.launch.submit import JOBS
from tests.written import write

JOB = {
    "launcher": "slurm",
    "job_id": "12",
    "cluster": "here",
    "host": "login",
    "pid": 1,
    "started_unix_s": 1.0,
}
NPROC = {"slurm.json": {"nproc": [1, 1]}}
DONE_IN_ORDER = {"code": STOPPED, "message": "stopped cleanly after step 7"}


def run_folder(logs: Path, name: str, job: Any = None, end: Any = None) -> Path:
    time.sleep(0.01)  # the last one is the newest
    files = {"config.yaml": "", "job.json": job, "exit.json": end}
    return write(logs / name, {file: it for file, it in files.items() if it is not None})


def leader(**more: Any) -> dict[str, Any]:
    """The record of a run that this process leads."""
    me = psutil.Process()
    plain = {"launcher": "local", "job_id": str(me.pid), "pid": me.pid}
    return plain | {"host": socket.gethostname(), "started_unix_s": me.create_time()} | more


def of_ranks(cause: str, message: str, code: int) -> dict[str, Any]:
    """The records of two ranks that ended so."""
    more = {"host": "here", "time_unix_s": 5.0, "code": code, "cause": cause, "traceback": ""}
    return {
        f"exits/rank_0000{rank}.json": {**more, "rank": rank, "message": message} for rank in (0, 1)
    }


def remembered(run_dir: Path) -> Path:
    """A run's folder, which is in the index of runs."""
    run_dir.mkdir(parents=True)
    run_record.remember(run_dir)
    return run_dir


def jobs(logs: Path, *words: str) -> tuple[int, str, str]:
    """What `muster jobs` says of the runs in `logs`."""
    done = call(sys.executable, JOBS, "--logs-dir", logs, *words, cwd="/")
    return done.returncode, done.stdout, done.stderr
