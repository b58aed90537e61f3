"""A real Slurm that falls silent, and jobs that are pending or requeued: nothing is called over.

None of it waits for workers to train: what Slurm and the agents do comes before that.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from launch.virtual_cluster import daemons, slurm_daemons
from tests.cluster import ways
from tests.cluster.testbeds import REPOSITORY, Cluster
from tests.cluster.ways import MANUAL, MULTINODE, finish, start
from tests.launch.submit import SUBMIT, wait_until
from tests.train.workers import read_json

# As `testbed up` does; a testbed that is made anew would have forgotten the job.
START_CONTROLLER = """
from launch.virtual_cluster import daemons, slurm_daemons
slurm_daemons.start_controller()
daemons.wait(slurm_daemons.CONTROLLER, slurm_daemons.answers)
"""
ENDLESS = [*MANUAL, "--no-snapshot", "--", "sleep", "10000"]


class Run:
    """A run on a testbed, from the moment Slurm has its job."""

    def __init__(self, cluster: Cluster, folder: Path, argv: list[str]) -> None:
        self.cluster, self.folder = cluster, folder
        self.process = start(cluster, [*argv, "--logs-dir", str(folder), *ENDLESS])
        begun = wait_until(lambda: self._jobs() or self.process.poll() not in (None, 0))
        assert begun and self._jobs(), self.process.communicate(timeout=5)
        (self.job_id,) = map(str, self._jobs())

    def _jobs(self) -> list[object]:
        records = map(read_json, self.folder.glob("*/job.json"))
        return [one["job_id"] for one in records if one.get("job_id")]

    def agents(self, count: int) -> list[psutil.Process]:
        """Those of its nodes, once they are there."""
        pattern = "*/agents/node_?????.json"
        assert wait_until(lambda: len(list(self.folder.glob(pattern))) == count)
        return [psutil.Process(read_json(path)["pid"]) for path in self.folder.glob(pattern)]

    def jobs(self, *words: str) -> str:
        return ways.jobs(self.cluster, "--logs-dir", str(self.folder), *words)

    def is_queued(self) -> bool:
        queue = self.cluster.run("squeue", "--noheader", "--format=%A %T").stdout.splitlines()
        return any(line.split()[0] == self.job_id for line in queue if "COMPLETING" not in line)


@pytest.fixture
def run(cluster, tmp_path) -> Iterator[Callable[..., Run]]:
    made = []

    def make(*argv: str, on: Cluster = cluster) -> Run:
        made.append(Run(on, tmp_path, list(argv)))
        return made[-1]

    yield make
    for one in made:
        ways.cancel_all(one.cluster)
        finish(one.process)


def submitted(*flags: str) -> list[str]:
    return [sys.executable, SUBMIT, "--launcher", "slurm", *flags]


def multinode(folder: Path, *options: str) -> list[str]:
    return [*ways.SBATCH, *options, f"--output={folder / 'job.out'}", MULTINODE]


def test_a_controller_that_is_down_ends_nothing(run):
    one = run(*submitted("--nodes", "1", "--wait"))
    try:
        one.agents(1)
        pid = daemons.pid(slurm_daemons.CONTROLLER)
        assert pid is not None
        controller = psutil.Process(pid)
        controller.terminate()  # so that it writes down what it knows: a forgotten job is ended
        controller.wait()
        status = one.jobs("status")
        assert ": unknown (job " in status and "does not answer" in status
        printed = ""
        while "unknown" not in printed:
            line = one.process.stdout.readline()
            assert line, one.process.communicate()
            printed += line
        assert one.process.poll() is None
    finally:
        subprocess.run([sys.executable, "-c", START_CONTROLLER], cwd=REPOSITORY, check=True)
    assert one.jobs("cancel").endswith(": stopped\n")
    assert not one.is_queued()
    code, out, err = finish(one.process)
    assert code > 0 and "completed" not in printed + out, printed + out + err
    # A controller that has just come back may hold nodes for unknown, and refuse jobs for them.
    states = ["sinfo", "--noheader", "--format=%T"]
    assert wait_until(lambda: set(one.cluster.run(*states).stdout.split()) == {"idle"})


def test_a_pending_job_is_cancelled(run):
    one = run(*submitted("--slurm", "begin=now+1hour"))
    status = one.jobs("status")
    assert f": pending (job {one.job_id}; BeginTime)" in status
    assert "BeginTime: what that is: https://slurm.schedmd.com/job_reason_codes.html" in status
    assert re.search(r"expected start: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d, as far as Slurm", status)
    (line,) = one.jobs("list").splitlines()[1:]
    assert re.search(rf" {one.job_id} +pending +BeginTime: ", line)
    one.cluster.run("scontrol", "uhold", one.job_id)
    status = one.jobs("status")
    assert "(job " in status and "JobHeldUser: " in status and "expected start" not in status
    assert one.jobs("cancel").endswith(": stopped\n")
    assert not one.is_queued()
    assert "is over already: stopped" in one.jobs("cancel")


def test_a_requeued_job_is_cancelled_before_it_starts_again(run, tmp_path):
    one = run(*multinode(tmp_path, "--nodes=1"))
    one.agents(1)
    one.cluster.run("scontrol", "requeuehold", one.job_id)
    assert wait_until(lambda: ": pending (job " in one.jobs("status"))
    assert one.jobs("cancel").endswith(": stopped\n")
    assert not one.is_queued()


def of_steps(one: Run, variable: str) -> list[str]:
    """What Slurm tells the agents of two nodes."""
    return [agent.environ()[variable] for agent in one.agents(2)]


def test_a_step_has_all_cores_that_its_job_has(run, tmp_path):
    one = run(*multinode(tmp_path, "--nodes=2", "--exclusive"))
    assert of_steps(one, "SLURM_CPUS_ON_NODE") == ["8", "8"]


def test_a_step_has_the_gpus_and_their_cores(other_cluster, run, tmp_path):
    """How many cores go with a GPU is said per GPU, or by the cluster, not by the script."""
    if slurm_daemons.version() < slurm_daemons.PRETENDS_GPUS:
        pytest.skip(f"Slurm {slurm_daemons.version()} does not pretend GPUs")
    cluster = other_cluster("--nodes", "2", "--gpus", "2")
    argv = multinode(tmp_path, "--nodes=2", "--gpus-per-node=2", "--cpus-per-gpu=3")
    one = run(*argv, on=cluster)
    assert of_steps(one, "SLURM_CPUS_ON_NODE") == ["6", "6"]
    assert of_steps(one, "CUDA_VISIBLE_DEVICES") == ["0,1", "0,1"]
