"""A run ends everywhere, whether its user or Slurm ends it, and runs never mix their workers."""

import signal
import subprocess
import sys

import psutil
import pytest

from tests.cluster import ways
from tests.cluster.recoveries import slurm_daemons
from tests.cluster.testbeds import TESTBED
from tests.cluster.ways import MANUAL, SYNTHETIC, WAYS, Run, finish, start
from tests.commands import ended
from tests.launch.submit import only_run
from tests.train.workers import losses, read_json


@pytest.mark.usefixtures("paced")
def test_ctrl_c_over_ssh_stops_with_a_checkpoint(cluster, tmp_path):
    run = Run(cluster, WAYS["ssh"], tmp_path, *MANUAL)
    run.process.send_signal(signal.SIGINT)
    run.ends()
    assert run.end()[0] == 75 and "stopped cleanly after step" in run.exit()["message"]
    stopped = read_json(run.run_dir / "stopped.json")
    assert stopped["why"] == "SIGINT"
    assert [path.name for path in (run.run_dir / "checkpoints").iterdir()] == [
        f"step_{stopped['step']:08d}"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("paced")
def test_killed_launcher_leaves_no_process_on_nodes(cluster, tmp_path):
    run = Run(cluster, WAYS["ssh"], tmp_path, *MANUAL)
    run.process.kill()
    run.ends()
    assert run.end()[0] == -signal.SIGKILL


@pytest.fixture
def job(cluster, paced, tmp_path):
    """A run as a Slurm job; nothing of it is left after the test."""
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    yield run
    ways.cancel_all(cluster)
    run.end()


def test_scancel_stops_with_a_checkpoint(cluster, job):
    cluster.run("scancel", ways.running_job(cluster))
    job.ends()
    assert job.end()[0] != 0 and job.exit()["code"] == 75
    assert (job.run_dir / "stopped.json").exists()


@pytest.mark.slow
def test_the_first_node_of_slurm_dies_and_the_job_is_requeued(cluster, job):
    """The leader dies with it: everything that it led ends, and Slurm starts the job again."""
    number = ways.running_job(cluster)
    for one in slurm_daemons(job, 0):
        one.kill()
    job.ends()
    ways.wait_for_requeue(cluster, number)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_two_runs_at_once_on_the_same_nodes(cluster, tmp_path):
    """Neither meets the other's workers, although they are started in different ways."""
    started = {}
    for name, way in {"a": "ssh", "b": "sbatch"}.items():
        (tmp_path / name).mkdir()
        more = ["--max-steps", "30", "--logs-dir", str(tmp_path / name), "--seed", str(ord(name))]
        started[name] = start(cluster, WAYS[way](cluster, 4, *SYNTHETIC, *more))
    for name, process in started.items():
        code, out, err = finish(process)
        assert code == 0, name + out + err
    found = [tuple(losses(only_run(tmp_path / name))) for name in started]
    assert all(len(one) == 30 for one in found)
    assert len(set(found)) == 2


HOLD = """import socket, time
with socket.create_server(("", 29777)):
    print(flush=True)
    time.sleep(10_000)
"""


@pytest.mark.slow
def test_master_port_in_use_on_node_0_is_refused(cluster, tmp_path):
    inside = [sys.executable, TESTBED, "exec", "node0", "--", sys.executable, "-c", HOLD]
    with ended(subprocess.Popen(inside, stdout=subprocess.PIPE, text=True)) as holder:
        assert holder.stdout.readline()
        flags = [*SYNTHETIC, "--logs-dir", str(tmp_path), "--master-port", "29777"]
        code, _, err = ways.call(cluster, WAYS["ssh"](cluster, 2, *flags))
        for child in psutil.Process(holder.pid).children(recursive=True):
            child.kill()
    assert code == 1 and "--master-port 29777 is in use on node0" in err
