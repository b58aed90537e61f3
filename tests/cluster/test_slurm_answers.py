"""A real Slurm that falls silent, and pending or requeued jobs: no run is reported as over.

No test waits for workers to train: what Slurm and the agents do comes before that.
"""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from launch.deadlines import LEADER_LOST_WHEN_SILENT_S
from launch.virtual_cluster import daemons, slurm_daemons
from muster.checkout import CHECKOUT
from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import ENDLESS, Run, Sleeps
from tests.launch.submit import SUBMIT, wait_until

# As `testbed up` does; a new testbed would have forgotten the job.
START_CONTROLLER = """
from launch.virtual_cluster import daemons, slurm_daemons
slurm_daemons.start_controller()
daemons.wait(slurm_daemons.CONTROLLER, slurm_daemons.answers)
"""


@pytest.fixture
def run(cluster, tmp_path) -> Iterator[Callable[..., Run]]:
    made = []

    def make(way: Callable[..., list[str]], nodes: int, on: Cluster = cluster) -> Run:
        made.append(Run(on, way, tmp_path, program=Sleeps(), nodes=nodes))
        return made[-1]

    yield make
    for one in made:
        ways.cancel_all(one.cluster)
        one.end()


def is_queued(cluster: Cluster) -> bool:
    """Whether there is any job that is not already ending."""
    states = cluster.run("squeue", "--noheader", "--format=%T").stdout.split()
    return bool(set(states) - {"COMPLETING"})


@pytest.mark.slow
def test_a_controller_that_is_down_ends_nothing(cluster, run, jobs):
    one = run(ways.slurm, 1)
    try:
        pid = daemons.pid(slurm_daemons.CONTROLLER)
        assert pid is not None
        controller = psutil.Process(pid)
        controller.terminate()  # so that it saves its state: a forgotten job is ended
        controller.wait()
        status = jobs("status")
        assert ": unknown (job " in status and "does not answer" in status
        wait_until(lambda: "unknown" in one.printed())
        assert not one.is_over()
    finally:
        subprocess.run([sys.executable, "-c", START_CONTROLLER], cwd=CHECKOUT, check=True)
    assert jobs("cancel").endswith(": stopped\n")
    assert not is_queued(cluster)
    assert one.end()[0] > 0 and "completed" not in one.printed(), one.printed()
    # A controller that has just come back may consider nodes unknown, and refuse jobs for them.
    states = ["sinfo", "--noheader", "--format=%T"]
    wait_until(lambda: set(cluster.run(*states).stdout.split()) == {"idle"})


def test_a_pending_job_is_cancelled(cluster, jobs, tmp_path):
    words = ["--launcher", "slurm", "--slurm", "begin=now+1hour", "--logs-dir", str(tmp_path)]
    ways.succeed(cluster, [sys.executable, SUBMIT, *words, *ENDLESS])
    status = jobs("status")
    (job_id,) = re.findall(r": pending \(job (\d+); BeginTime\)", status)
    assert re.search(r"BeginTime: .*https://\S+/job_reason_codes", status)
    assert re.search(r"expected start: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d, ", status)
    (line,) = jobs("list").splitlines()[1:]
    assert re.search(r" pending .* BeginTime: ", line)
    cluster.run("scontrol", "uhold", job_id)
    status = jobs("status")
    assert "(job " in status and "JobHeldUser: " in status and "expected start" not in status
    assert jobs("cancel").endswith(": stopped\n")
    assert not is_queued(cluster)
    assert "already ended: stopped" in jobs("cancel")


@pytest.mark.slow
def test_a_requeued_job_is_cancelled_before_it_starts_again(cluster, run, jobs):
    run(ways.sbatch("multinode.sh"), 1)
    cluster.run("scontrol", "requeuehold", ways.running_job(cluster))
    wait_until(lambda: ": pending (job " in jobs("status"))
    assert jobs("cancel").endswith(": stopped\n")
    assert not is_queued(cluster)


@pytest.mark.slow
def test_a_job_that_slurm_suspends_goes_on_when_it_is_resumed(cluster, run, jobs):
    """It is suspended for longer than agents wait for a sign of life."""
    one = run(ways.sbatch("multinode.sh"), 2)
    job = ways.running_job(cluster)
    agents = [one.agent(node) for node in range(2)]
    cluster.run("scontrol", "suspend", job)
    wait_until(lambda: all(agent.status() == "stopped" for agent in agents))
    assert ": suspended (job " in jobs("status")
    time.sleep(LEADER_LOST_WHEN_SILENT_S + 3)
    cluster.run("scontrol", "resume", job)
    wait_until(lambda: all(agent.status() != "stopped" for agent in agents))
    answer = jobs("stacks")
    has_ended = (one.run_dir / "exit.json").exists()
    assert "rank 1 on node1" in answer and not has_ended, answer + one.printed()
    assert [agent.pid for agent in agents] == [one.agent(node).pid for node in range(2)]
    assert jobs("cancel").endswith(": stopped\n")
    ended = one.exit()
    assert ended["code"] == 143 and ended["message"] == "stopped by SIGTERM", ended


def step_variables(one: Run, variable: str) -> list[str]:
    """Return the value of a variable that Slurm sets for the agents of two nodes."""
    return [one.agent(node).environ()[variable] for node in range(2)]


@pytest.mark.slow
def test_a_step_has_all_cores_that_its_job_has(run):
    one = run(ways.sbatch("multinode.sh", "--exclusive"), 2)
    assert step_variables(one, "SLURM_CPUS_ON_NODE") == ["8", "8"]


@pytest.mark.slow
def test_a_step_has_the_gpus_and_their_cores(other_cluster, run):
    """The number of cores per GPU is set by a flag or by the cluster, not by the script."""
    if slurm_daemons.version() < slurm_daemons.FAKE_GPUS_SINCE:
        pytest.skip(f"Slurm {slurm_daemons.version()} does not pretend GPUs")
    cluster = other_cluster("--nodes", "2", "--gpus", "2")
    one = run(ways.sbatch("multinode.sh", "--gpus-per-node=2", "--cpus-per-gpu=3"), 2, on=cluster)
    assert step_variables(one, "SLURM_CPUS_ON_NODE") == ["6", "6"]
    assert step_variables(one, "CUDA_VISIBLE_DEVICES") == ["0,1", "0,1"]
