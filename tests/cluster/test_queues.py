"""A run that is queued in several partitions, on a real Slurm: the first job to start leads it."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster import run_files
from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import ENDLESS, MANUAL
from tests.launch.submit import JOBS, SUBMIT, only_run, wait_until
from tests.train.workers import read_json

pytestmark = pytest.mark.slow

TWO = ["--partition", "short,main", "--account", "x,y", "--time", "2"]
ONE_ACCOUNT = ["--partition", "short,main", "--account", "x", "--time", "2"]


@pytest.fixture
def busy(cluster) -> Iterator[Callable[..., None]]:
    """Has nodes in use by another job; the partition `short` has the first two of the four."""

    def occupy(*nodes: str) -> None:
        words = ["--exclusive", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"]
        done = cluster.run("sbatch", *words, "--output=/dev/null", "--wrap", "sleep 10000")
        assert done.returncode == 0, done.stderr
        states = ("squeue", "--noheader", "--format=%T")
        assert wait_until(lambda: "RUNNING" in cluster.run(*states).stdout)

    yield occupy
    ways.cancel_all(cluster)


def words(folder: Path, *flags: str) -> list[str]:
    return [sys.executable, SUBMIT, "--launcher", "slurm", "--logs-dir", str(folder), *flags]


def queued(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """State, partition and account of each job that Slurm knows of a run."""
    asked = ["squeue", "--noheader", "--states=all", "--format=%A %T %P %a %j"]
    rows = [line.split() for line in cluster.run(*asked).stdout.splitlines()]
    return {number: tuple(more) for number, *more, name in rows if name.startswith("muster-")}


def of_run(cluster: Cluster, run_dir: Path) -> dict[str, tuple[str, ...]]:
    """The same of the jobs that were queued for one run."""
    job = read_json(run_files.JOB.path(run_dir))
    known = queued(cluster)
    return {number: known[number] for number in job["job_ids"]}


def test_run_starts_in_free_partition_and_other_job_is_withdrawn(cluster, tmp_path, busy):
    busy(*cluster.hosts[:2])
    ranks = tmp_path / "ranks"
    program = [*MANUAL, "--no-snapshot", "--", "sh", "-c", 'echo $RANK >> "$0"', str(ranks)]
    flags = ["--wait", "--nodes", "2", *TWO, *program]
    out, _ = ways.succeed(cluster, words(tmp_path, *flags))
    run_dir = only_run(tmp_path)
    job_id = read_json(run_files.JOB.path(run_dir))["job_id"]
    assert sorted(ranks.read_text().split()) == ["0", "1"]
    assert f"job {job_id}: done\n" in out
    ends = [("CANCELLED", "short", "x"), ("COMPLETED", "main", "y")]
    assert wait_until(lambda: [*of_run(cluster, run_dir).values()] == ends)


def test_with_one_account_slurm_itself_chooses_the_partition(cluster, tmp_path, busy):
    busy(*cluster.hosts[:2])
    program = [*MANUAL, "--no-snapshot", "--", "true"]
    ways.succeed(cluster, words(tmp_path, "--wait", *ONE_ACCOUNT, *program))
    run_dir = only_run(tmp_path)
    job = read_json(run_files.JOB.path(run_dir))
    assert "job_ids" not in job and queued(cluster)[job["job_id"]][1:] == ("main", "x")
    assert not run_files.FIRST_JOB.path(run_dir).exists()


def test_jobs_of_all_accounts_are_listed_while_they_wait_and_cancelled(
    cluster, tmp_path, busy, jobs
):
    busy(*cluster.hosts)
    out, _ = ways.succeed(cluster, words(tmp_path, *TWO, *ENDLESS))
    (numbers,) = re.findall(r"^job (\d+) or (\d+); run folder: ", out, re.MULTILINE)
    run_dir = only_run(tmp_path)
    waiting = f"pending (job {' or '.join(numbers)}; "
    assert [more[1:] for more in of_run(cluster, run_dir).values()] == [
        ("short", "x"), ("main", "y"),
    ]  # fmt: skip
    for number in numbers:
        assert f"{run_dir.name}: {waiting}" in jobs("status", number)
    wait = [sys.executable, JOBS, "--logs-dir", str(tmp_path), "wait", numbers[1], "--for=1s"]
    code, _, err = ways.call(cluster, wait)
    assert code == 124 and f"goes on: {waiting}" in err
    assert jobs("cancel", numbers[1]).endswith(": stopped\n")
    assert {state for state, *_ in of_run(cluster, run_dir).values()} == {"CANCELLED"}


def test_second_job_of_run_does_nothing_and_requeued_first_leads(cluster, tmp_path, jobs):
    """Both are released together, on nodes that are all free, and in a partition without limit."""
    queues = ["--partition", "main,main", "--account", "x,y"]
    held = ["--slurm", "hold", *queues, *ENDLESS]
    try:
        ways.succeed(cluster, words(tmp_path, *held))
        run_dir = only_run(tmp_path)
        numbers = [*of_run(cluster, run_dir)]
        cluster.run("scontrol", "release", ",".join(numbers))
        claim = run_files.FIRST_JOB.path(run_dir)
        assert wait_until(claim.exists)
        first = claim.read_text()
        (other,) = {*numbers} - {first}
        assert wait_until(lambda: of_run(cluster, run_dir)[other][0] in ("CANCELLED", "COMPLETED"))
        assert wait_until(lambda: bool([*run_dir.glob("agents/node_?????.json")]))
        for number in numbers:
            assert f"{run_dir.name}: running (job {first})" in jobs("status", number)

        cluster.run("scontrol", "requeue", first)
        assert wait_until((run_dir / "attempts" / "0").exists)
        assert wait_until(lambda: bool([*run_dir.glob("agents/node_?????.json")]))
        job = read_json(run_files.JOB.path(run_dir))
        assert (job["job_id"], job["job_ids"]) == (first, numbers)
        assert jobs("cancel", other).endswith(": stopped\n")
    finally:
        ways.cancel_all(cluster)
