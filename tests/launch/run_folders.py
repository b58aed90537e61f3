"""Run folders as runs leave them, with a leader on this machine or a Slurm job."""

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
    time.sleep(0.01)  # so that the last folder is the newest
    files = {"config.yaml": "", "job.json": job, "exit.json": end}
    return write(logs / name, {file: it for file, it in files.items() if it is not None})


def leader(**more: Any) -> dict[str, Any]:
    """Return the record of a run that this process leads."""
    me = psutil.Process()
    plain = {"launcher": "local", "job_id": str(me.pid), "pid": me.pid}
    return plain | {"host": socket.gethostname(), "started_unix_s": me.create_time()} | more


def of_ranks(cause: str, message: str, code: int) -> dict[str, Any]:
    """Return the records of two ranks that ended in this way."""
    more = {"host": "here", "time_unix_s": 5.0, "code": code, "cause": cause, "traceback": ""}
    return {
        f"exits/rank_0000{rank}.json": {**more, "rank": rank, "message": message} for rank in (0, 1)
    }


def remembered(run_dir: Path) -> Path:
    """Make a run folder, and add it to the index of runs."""
    run_dir.mkdir(parents=True)
    run_record.remember(run_dir)
    return run_dir


def jobs(logs: Path, *words: str) -> tuple[int, str, str]:
    """Run `muster jobs` for the runs in `logs`; return exit code, stdout and stderr."""
    done = call(sys.executable, JOBS, "--logs-dir", logs, *words, cwd="/")
    return done.returncode, done.stdout, done.stderr
