"""Whoever ends a run, its user or Slurm: it ends everywhere, and no run meets another's."""

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.cluster import ways
from tests.cluster.recoveries import slurm_daemons
from tests.cluster.testbeds import TESTBED
from tests.cluster.ways import Run, finish, start
from tests.launch.submit import wait_until
from tests.train.workers import losses

WAYS = {"ssh": ways.ssh, "sbatch": ways.sbatch("multinode.sh")}


def test_the_user_stops_it(cluster, tmp_path):
    run = Run(cluster, ways.ssh, tmp_path)
    run.process.send_signal(signal.SIGINT)
    run.ends()
    code, _, err = run.end()
    assert (
        code == 75 and "stopped cleanly after step" in err + (run.run_dir / "exit.json").read_text()
    )
    stopped = json.loads((run.run_dir / "stopped.json").read_text())
    assert stopped["why"] == "SIGINT"
    assert [path.name for path in (run.run_dir / "checkpoints").iterdir()] == [
        f"step_{stopped['step']:08d}"
    ]


def test_the_launcher_is_killed(cluster, tmp_path):
    run = Run(cluster, ways.ssh, tmp_path)
    run.process.kill()
    run.ends()
    assert run.end()[0] == -signal.SIGKILL


def test_a_job_is_cancelled(cluster, tmp_path):
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    cluster.run("scancel", ways.running_job(cluster))
    run.ends()
    assert run.end()[0] != 0
    assert wait_until((run.run_dir / "exit.json").exists)
    assert json.loads((run.run_dir / "exit.json").read_text())["code"] == 75
    assert (run.run_dir / "stopped.json").exists()


def test_the_first_node_of_slurm_dies_and_the_job_is_requeued(cluster, tmp_path):
    """With it the leader: all that it led ends, and Slurm starts the job again."""
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    job = ways.running_job(cluster)
    for one in slurm_daemons(run, 0):
        one.kill()
    try:
        run.ends()
        show = ("scontrol", "show", "job", "--oneliner", job)
        assert wait_until(lambda: " Restarts=1 " in cluster.run(*show).stdout)
    finally:
        end_job(run)


def test_slurmd_alone_dies(cluster, tmp_path):
    """Its tasks go on, as Slurm means them to; when Slurm gives the node up, all end."""
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    (slurmd,) = (one for one in slurm_daemons(run, 2) if one.name() == "slurmd")
    slurmd.kill()
    try:
        time.sleep(3)
        assert run.left() != []
        run.ends()
    finally:
        end_job(run)


def end_job(run) -> None:
    ways.cancel_all(run.cluster)
    finish(run.process)


@pytest.mark.usefixtures("warm_workers")
def test_two_runs_at_once_on_the_same_nodes(cluster, tmp_path):
    """Neither meets the other's workers, whichever way both were started."""
    flags = ["--task", "synthetic", "--max-steps", "30", "--evaluate", "never", "--threads", "1"]
    chosen = {"a": ways.ssh, "b": ways.ssh, "c": WAYS["sbatch"], "d": WAYS["sbatch"]}
    started = {}
    for name, way in chosen.items():
        (tmp_path / name).mkdir()
        folder = ["--logs-dir", str(tmp_path / name), "--seed", str(ord(name))]
        started[name] = start(cluster, way(cluster, 4, *flags, *folder))
    for name, process in started.items():
        code, out, err = finish(process, timeout_s=300)
        assert code == 0, name + out + err
    runs = [next((tmp_path / name).glob("*/config.yaml")).parent for name in chosen]
    found = [tuple(losses(run_dir)) for run_dir in runs]
    assert all(len(one) == 30 for one in found)
    assert len(set(found)) == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_port_is_taken(cluster, way, tmp_path):
    """One that was asked for is an error with its name; without asking another is taken."""
    hold = "import socket, time; s = socket.create_server(('', 29777)); print(flush=True)"
    holder = subprocess.Popen(
        [sys.executable, TESTBED, "exec", "node0", "--", sys.executable, "-c"]
        + [f"{hold}; time.sleep(10_000)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        holder.stdout.readline()
        flags = ["--task", "synthetic", "--max-steps", "2", "--threads", "1"]
        folder = ["--logs-dir", str(tmp_path), "--master-port", "29777"]
        code, _, err = finish(start(cluster, WAYS[way](cluster, 2, *flags, *folder)))
    finally:
        for child in psutil.Process(holder.pid).children(recursive=True):
            child.kill()
        holder.kill()
        holder.wait()
    output = tmp_path / "job.out"
    text = err + (output.read_text() if output.exists() else "")
    assert code == 1
    assert "--master-port 29777 is in use" in text and "node0" in text
