"""Whatever breaks, on whichever node: the run ends everywhere in seconds, and says what broke."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster import ways
from tests.cluster.testbeds import TESTBED
from tests.cluster.ways import Run, finish, start
from tests.launch.submit import wait_until

DEAD_S = 5.0  # a process, or a launcher
LINK_S = 30.0  # a link
WAYS = {"ssh": ways.ssh, "sbatch": ways.sbatch("multinode.sh")}


@pytest.fixture(params=WAYS)
def run(request, cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "0")  # else a job starts again
    made = Run(cluster, WAYS[request.param], tmp_path)
    made.way = request.param
    yield made
    made.process.kill()
    made.process.wait()
    ways.cancel_all(cluster)
    assert wait_until(lambda: made.left() == [], timeout_s=30)


def message(run) -> str:
    """All that the user sees at the end, where it is seen."""
    code, _, err = run.end()
    assert code != 0
    output = run.folder / "job.out"
    return err + (output.read_text() if output.exists() else "")


def test_a_worker_is_killed(run):
    run.hit(run.worker(2).kill)
    run.gone_after_s(DEAD_S)
    text = message(run)
    assert "rank 2 ended without a word (killed? out of memory?)" in text
    assert "Traceback" not in text


def test_torchrun_is_killed(run):
    run.hit(run.torchrun(1).kill)
    run.gone_after_s(DEAD_S)
    assert "torchrun on node1 was killed by SIGKILL (rank 1)" in message(run)


def test_a_supervisor_is_killed(run):
    run.hit(run.agent(3).kill)
    run.gone_after_s(DEAD_S)
    assert "node3 (10.10.1.4) is gone: its agent was killed, or the node went down" in message(run)


def test_the_supervisor_of_node_0_is_killed(run):
    run.hit(run.agent(0).kill)
    run.gone_after_s(DEAD_S)
    assert "is gone: its agent was killed" in message(run)


def test_a_link_goes_down(run):
    run.hit(lambda: run.cluster.exec("node2", "ip", "link", "set", "exp0", "down"))
    try:
        run.gone_after_s(LINK_S)
    finally:
        run.cluster.exec("node2", "ip", "link", "set", "exp0", "up")
    assert "is its link down?" in message(run)


def test_the_user_stops_it(cluster, tmp_path):
    run = Run(cluster, ways.ssh, tmp_path)
    run.hit(lambda: run.process.send_signal(signal.SIGINT))
    run.gone_after_s(DEAD_S)
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
    run.hit(run.process.kill)
    run.gone_after_s(DEAD_S)
    assert run.end()[0] == -signal.SIGKILL


def test_a_connection_is_cut(cluster, tmp_path):
    run = Run(cluster, ways.ssh, tmp_path)
    below = psutil.Process(run.process.pid).children(recursive=True)
    clients = [one for one in below if one.name() == "ssh"]
    run.hit(clients[2].kill)
    run.gone_after_s(DEAD_S)
    code, _, err = run.end()
    assert code == 1 and "node2" in err and "cut" in err


def test_a_job_is_cancelled(cluster, tmp_path):
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    (job,) = cluster.run("squeue", "--noheader", "--format=%A").stdout.split()
    run.hit(lambda: cluster.run("scancel", job))
    run.gone_after_s(2 * DEAD_S)  # in order: with a checkpoint, and the script's own end
    assert run.end()[0] != 0
    assert wait_until((run.run_dir / "exit.json").exists, timeout_s=20)
    assert json.loads((run.run_dir / "exit.json").read_text())["code"] == 75
    assert (run.run_dir / "stopped.json").exists()


def test_a_node_of_slurm_dies(cluster, tmp_path):
    """slurmd and the step's supervisor, as when its node goes down."""
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    daemons = slurm_daemons(run, 2)
    assert {one.name() for one in daemons} == {"slurmd", "slurmstepd"}
    run.hit(lambda: [one.kill() for one in daemons])
    try:
        run.gone_after_s(DEAD_S)
    finally:
        end_job(run)


def test_slurmd_alone_dies(cluster, tmp_path):
    """Its tasks go on, as Slurm means them to; when Slurm gives the node up, all end."""
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    (slurmd,) = (one for one in slurm_daemons(run, 2) if one.name() == "slurmd")
    run.hit(slurmd.kill)
    try:
        time.sleep(3)
        assert run.left() != []
        run.gone_after_s(60)  # SlurmdTimeout, here 20 s
    finally:
        end_job(run)


def slurm_daemons(run, node: int) -> list[psutil.Process]:
    """Of one node: they share the network namespace of its agent."""
    place = _network_of(run.agent(node).pid)
    return [
        one
        for one in psutil.process_iter()
        if one.name() in ("slurmd", "slurmstepd") and _network_of(one.pid) == place
    ]


def _network_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


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
        code, out, err = finish(process, timeout_s=180)
        assert code == 0, name + out + err
    runs = [next((tmp_path / name).glob("*/config.yaml")).parent for name in chosen]
    found = [tuple(ways.losses(run_dir)) for run_dir in runs]
    assert all(len(one) == 30 for one in found)
    assert len(set(found)) == 4


@pytest.mark.parametrize("way", WAYS)
def test_a_port_is_taken(cluster, way, tmp_path):
    """One that was asked for is an error with its name; without asking another is taken."""
    hold = "import socket, time; s = socket.create_server(('', 29777)); print(flush=True)"
    holder = subprocess.Popen(
        [sys.executable, TESTBED, "exec", "node0", "--", sys.executable, "-c"]
        + [f"{hold}; time.sleep(99)"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        holder.stdout.readline()
        flags = ["--task", "synthetic", "--max-steps", "2", "--threads", "1"]
        folder = ["--logs-dir", str(tmp_path), "--master-port", "29777"]
        began = time.monotonic()
        code, _, err = finish(start(cluster, WAYS[way](cluster, 2, *flags, *folder)))
        print(f"said after {time.monotonic() - began:.1f} s")
    finally:
        for child in psutil.Process(holder.pid).children(recursive=True):
            child.kill()
        holder.kill()
        holder.wait()
    output = tmp_path / "job.out"
    text = err + (output.read_text() if output.exists() else "")
    assert code == (2 if way == "ssh" else 1)  # nothing was started, or the job was
    assert "--master-port 29777 is in use" in text and "node0" in text
