"""Functions from Python, on real Slurm and over real ssh: eight ranks, and a process that dies."""

import json
import signal
import sys
from pathlib import Path

import pytest

import muster
from tests.cluster import ways
from tests.cluster.testbeds import REPOSITORY

SCRIPT = """
import json, os, signal, sys, time
import muster

def work(number):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(number * dist.get_rank())])
    dist.all_reduce(total)
    if number == 13 and dist.get_rank() == 5:
        raise ValueError("sample 17 is empty")
    dist.barrier()
    return total, dist.get_rank(), os.environ["KEY"]

def wait():
    time.sleep(5)
    return os.getpid()

if __name__ == "__main__":
    flags = json.loads(sys.argv[2])
    if sys.argv[1] == "results":
        job = muster.launch(work, 2, env={"KEY": "mine"}, **flags)
        found = [(total.item(), rank, key) for total, rank, key in job.results(timeout_s=300)]
        print(json.dumps(found))
    elif sys.argv[1] == "failure":
        try:
            muster.launch(work, 13, env={"KEY": "mine"}, **flags).results(timeout_s=300)
        except muster.RunFailed as error:
            print(json.dumps([error.rank, error.host, str(error), repr(error.__cause__)]))
    else:
        job = muster.launch(wait, **flags)
        with open("run_dir", "w") as file:
            file.write(str(job.run_dir))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "script.py").write_text(SCRIPT)
    return tmp_path / "project"


def flags_of(cluster, way: str, nodes: int = 4) -> dict[str, object]:
    more = {"launcher": "slurm", "time": 10}
    if way == "ssh":
        hosts, config = cluster.hosts[:nodes], str(cluster.ssh_config)
        more = {"launcher": "ssh", "hosts": hosts, "ssh_config": config}
    return {"nodes": nodes, "nproc_per_node": 2, **more}


def run(cluster, project: Path, what: str, flags: dict[str, object]) -> tuple[int, str, str]:
    argv = [sys.executable, "script.py", what, json.dumps(flags)]
    return ways.finish(ways.start(cluster, argv, project), timeout_s=300)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("way", ["ssh", "slurm"])
def test_results_and_the_exception_of_eight_ranks(cluster, project, way):
    flags = flags_of(cluster, way)
    code, out, err = run(cluster, project, "results", flags)
    assert code == 0, err
    assert json.loads(out) == [[56.0, rank, "mine"] for rank in range(8)]
    code, out, err = run(cluster, project, "failure", flags)
    assert code == 0, err
    rank, host, text, cause = json.loads(out)
    assert (rank, host) == (5, "node2")
    assert cause == "ValueError('sample 17 is empty')"
    assert text.startswith("rank 5 on node2: ValueError: sample 17 is empty\n\nIn the worker:")


@pytest.mark.parametrize("way", ["ssh", "slurm"])
def test_results_are_there_after_their_process_was_killed(cluster, project, way, monkeypatch):
    flags = {**flags_of(cluster, way, nodes=2), "workers": "manual"}
    code, _, err = run(cluster, project, "die", flags)
    assert code == -signal.SIGKILL, err
    for name, value in ways.environment(cluster).items():
        monkeypatch.setenv(name, value)
    job = muster.Job(Path((project / "run_dir").read_text()))
    assert len(set(job.results(timeout_s=300))) == 4
    assert job.status().word == "done"


def test_nodes_with_disks_of_their_own_send_results_home(other_cluster, project, monkeypatch):
    monkeypatch.delitem(ways.PYTHON, "MUSTER_PYTHON")  # the nodes' own environment
    venv = str(REPOSITORY / ".venv")
    cluster = other_cluster("--nodes", "2", "--private-home", env={"MUSTER_BED_VENV": venv})
    code, out, err = run(cluster, project, "results", flags_of(cluster, "ssh", nodes=2))
    assert code == 0, err
    assert json.loads(out) == [[12.0, rank, "mine"] for rank in range(4)]
    run_dirs = [path for path in (project / "logs").iterdir() if path.is_dir()]
    assert [oct(path.stat().st_mode & 0o777) for path in run_dirs[0].glob("results/*.pkl")] == [
        "0o600"
    ] * 4
