"""A job that never had a leader, or lost it: waiting for it and asking later give the same answer.

No test waits for workers to train.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from muster import run_files
from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import ENDLESS, MANUAL, Run, Sleeps
from tests.commands import finish
from tests.launch.submit import JOBS, only_run, wait_until
from tests.train.workers import read_json
from tests.written import executable

pytestmark = pytest.mark.slow


def documents(cluster: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Run a `jobs` command; return its exit code and its last document."""
    code, out, _ = ways.call(cluster, [sys.executable, JOBS, *words, "--json"])
    return code, json.loads(out.splitlines()[-1])


def end_as_all_say(cluster: Cluster, run_dir: Path, code: int) -> dict[str, Any]:
    """Check that `status` and `wait` report the same end, which nobody has recorded; return it."""
    of_run = ("--logs-dir", str(run_dir.parent))
    _, status = documents(cluster, *of_run, "status", run_dir.name)
    waited, ended = documents(cluster, *of_run, "wait", run_dir.name)
    assert status["over"] and ended["kind"] == "ended"
    assert (waited, status["end"]["exit_code"], ended["exit_code"]) == (code, code, code)
    assert status["end"].items() <= ended.items()
    assert not run_files.EXIT.path(run_dir).exists()
    return ended


class Waited:
    """A submitted run, and the command that waits for its end."""

    def __init__(self, cluster: Cluster, folder: Path, *flags: str) -> None:
        self._folder = folder
        words = ["--logs-dir", str(folder), *flags, *ENDLESS]
        self._process = ways.start(cluster, ways.slurm(cluster, 1, *words))
        wait_until(lambda: bool(self._record().get("job_id")))
        self.run_dir = only_run(folder)
        self.job_id = self._record()["job_id"]

    def _record(self) -> dict[str, Any]:
        paths = [*self._folder.glob("*/job.json")]
        return read_json(paths[0]) if paths else {}

    def end(self) -> tuple[int, str, str]:
        return finish(self._process, timeout_s=600)


def test_job_that_fails_before_leading_shows_its_output(cluster, tmp_path):
    """It fails as if its node did not see the run folder's files."""
    waited = Waited(cluster, tmp_path, "--slurm", "hold")
    missing = run_files.SLURM.path(waited.run_dir)
    missing.rename(tmp_path / "slurm.json")
    cluster.run("scontrol", "release", waited.job_id)
    code, _, err = waited.end()
    assert code == 1 and f"{missing} not found on this node: " in err
    text = f"Slurm reports FAILED for job {waited.job_id}"
    assert text in err
    assert text in end_as_all_say(cluster, waited.run_dir, 1)["message"]


# The job's Python, with which the job starts, but no leader does.
HANGS = """#!/bin/sh
case "$*" in *batch_job*) exec sleep 10000 ;; esac
exec '{python}' "$@"
"""


@pytest.fixture
def leaderless(cluster, tmp_path, monkeypatch) -> Iterator[Waited]:
    """A running job whose leader never begins, and which must not be requeued."""
    executable(tmp_path / "python", HANGS.format(python=sys.executable))
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", str(tmp_path / "python"))
    waited = Waited(cluster, tmp_path / "logs")
    wait_until(lambda: state_of(cluster, waited.job_id) == "RUNNING")
    update(cluster, f"JobId={waited.job_id}", "Requeue=0")
    yield waited
    ways.cancel_all(cluster)
    waited.end()


def state_of(cluster: Cluster, job_id: str) -> str:
    """Slurm's word for the state of a job."""
    asked = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T"]
    return cluster.run(*asked).stdout.strip()


def update(cluster: Cluster, *words: str) -> None:
    done = cluster.run("scontrol", "update", *words)
    assert done.returncode == 0, done.stderr


def check_end(cluster: Cluster, waited: Waited, state: str) -> None:
    """Check that the job has ended in this state, and that all commands report it."""
    code, _, err = waited.end()
    text = f"error: Slurm reports {state} for job {waited.job_id}"
    assert code == 1 and text in err.splitlines(), err
    ended = end_as_all_say(cluster, waited.run_dir, 1)
    assert (ended["cause"], ended["message"]) == ("job", text)


def test_a_job_whose_node_fails_says_so(cluster, leaderless):
    (node,) = cluster.run(
        "squeue", "--noheader", f"--jobs={leaderless.job_id}", "--format=%N"
    ).stdout.split()
    update(cluster, f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        check_end(cluster, leaderless, "NODE_FAIL")
    finally:
        cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME")  # unless it is back
        states = ["sinfo", "--noheader", "--format=%T"]
        wait_until(lambda: set(cluster.run(*states).stdout.split()) == {"idle"})


def test_a_job_whose_time_is_over_says_so(cluster, leaderless):
    update(cluster, f"JobId={leaderless.job_id}", "EndTime=now")
    check_end(cluster, leaderless, "TIMEOUT")


def test_run_with_killed_leader_ends_alike_for_all_commands(cluster, tmp_path):
    run = Run(cluster, ways.slurm, tmp_path, program=Sleeps(), nodes=1)
    try:
        psutil.Process(read_json(run_files.JOB.path(run.run_dir))["pid"]).kill()
        code, _, err = run.end()
        run.ends()
        ended = end_as_all_say(cluster, run.run_dir, code)
    finally:
        ways.cancel_all(cluster)
    assert code > 0 and ended["message"] in err


def test_a_program_that_ends_as_if_by_a_signal_has_failed(cluster, tmp_path):
    """The command that waits for the job keeps what the job's leader has recorded."""
    words = [*MANUAL, "--no-snapshot", "--logs-dir", str(tmp_path), "--", "sh", "-c", "exit 143"]
    code, _, err = ways.call(cluster, ways.slurm(cluster, 1, *words))
    run_dir = only_run(tmp_path)
    recorded = read_json(run_files.EXIT.path(run_dir))
    assert (code, recorded["code"], recorded["cause"], recorded["rank"]) == (143, 143, "program", 0)
    assert recorded["message"] in err and "stopped by SIGTERM" not in err
    assert f"{run_dir.name}: failed" in ways.jobs(cluster, "--logs-dir", str(tmp_path), "status")
