"""Find a run by its id, in a folder on this machine or behind a login node."""

from __future__ import annotations

import json
import reprlib

from muster.command import LOGIN, logins
from muster.errors import MusterError, UsageError
from muster.login_job import LoginJob
from muster.remote_job import MUSTER, Job, run_command
from muster.writing import read_json


def job(run: str) -> Job:
    """Find the run whose id is `run` or begins with it, no matter who started it.

        >>> run_id = muster.launch(max, 2, 3, launcher="local").run_id
        >>> muster.job(run_id).wait()  # its exit code
        0

    Raises:
        UsageError: no run matches, or several do.
        MusterError: the connection to a login node failed.
    """
    if not isinstance(run, str) or not run or run.startswith("-"):
        raise UsageError(f"muster.job: run is {reprlib.repr(run)}\ntip: pass the id of a run")
    printed = run_command(MUSTER, "jobs", "status", run, "--json")
    return job_of(run, json.loads(printed.splitlines()[-1])["run_dir"])


def job_of(run: str, run_dir: str) -> Job:
    """The run in this folder, which is on a login node if the run was started there from here.

    Raises:
        MusterError: the login node's answer is not an absolute path.
    """
    login = None if "/" in run else read_json(logins() / run, *LOGIN)
    if login is None:
        return Job(run_dir)
    if not isinstance(run_dir, str) or not run_dir.startswith("/"):  # it will be an argument there
        raise MusterError(
            f"{login['login']}: the login node reports {run_dir!r} as the folder of {run}, "
            "which is not an absolute path"
        )
    return LoginJob(run, run_dir, login)
