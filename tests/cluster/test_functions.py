"""Functions from Python, on real Slurm and over real ssh: eight ranks, and a process that dies."""

import json
import signal
import sys
from pathlib import Path

import pytest

import muster
from tests.cluster import ways

SCRIPT = """
import json, os, signal, sys, time
import muster

def work(number):
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(number * dist.get_rank())])
    dist.all_reduce(total)
    if number == 13 and dist.get_rank() == 3:
        raise ValueError("sample 17 is empty")
    dist.barrier()
    return total, dist.get_rank(), os.environ["KEY"]

def wait():
    time.sleep(5)
    return os.getpid()

if __name__ == "__main__":
    flags = json.loads(sys.argv[2])
    if sys.argv[1] == "die":
        job = muster.launch(wait, **flags)
        with open("run_dir", "w") as file:
            file.write(str(job.run_dir))
        os.kill(os.getpid(), signal.SIGKILL)
    job = muster.launch(work, 2, env={"KEY": "mine"}, **flags)
    print(json.dumps([(total.item(), *more) for total, *more in job.results(timeout_s=300)]))
    try:
        muster.launch(work, 13, env={"KEY": "mine"}, **flags).results(timeout_s=300)
    except muster.RunFailed as error:
        print(json.dumps([error.rank, error.host, str(error), repr(error.__cause__)]))
"""


@pytest.fixture
def run(project):
    """Runs the script, to its end."""
    (project / "script.py").write_text(SCRIPT)

    def run(cluster, what: str, way: str, nodes: int, **flags: object) -> tuple[int, str, str]:
        flags |= {"nodes": nodes, "nproc_per_node": 2, "launcher": way}
        if way == "ssh":
            flags |= {"hosts": cluster.hosts[:nodes], "ssh_config": str(cluster.ssh_config)}
        return ways.call(cluster, [sys.executable, "script.py", what, json.dumps(flags)], project)

    return run


def assert_results(done: tuple[int, str, str], ranks: int) -> None:
    """What all ranks have returned, and what one of them has raised."""
    code, out, err = done
    assert code == 0, err
    results, (rank, host, text, cause) = map(json.loads, out.splitlines())
    total = 2 * sum(range(ranks))
    assert results == [[total, one, "mine"] for one in range(ranks)]
    assert (rank, host) == (3, "node1")
    assert cause == "ValueError('sample 17 is empty')"
    assert text.startswith("rank 3 on node1: ValueError: sample 17 is empty\n\nIn the worker:")


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("way", ["ssh", "slurm"])
def test_results_and_the_exception_of_eight_ranks(cluster, run, way):
    assert_results(run(cluster, "results", way, 4), 8)


@pytest.mark.parametrize("way", ["ssh", "slurm"])
def test_results_are_there_after_their_process_was_killed(cluster, run, project, way, monkeypatch):
    code, _, err = run(cluster, "die", way, 2, workers="manual")
    assert code == -signal.SIGKILL, err
    for name, value in ways.environment(cluster).items():
        monkeypatch.setenv(name, value)
    job = muster.Job(Path((project / "run_dir").read_text()))
    assert len(set(job.results(timeout_s=300))) == 4
    assert job.status().word == "done"


def test_nodes_with_disks_of_their_own_send_results_home(apart, run, project):
    assert_results(run(apart, "results", "ssh", 2), 4)
    modes = [oct(path.stat().st_mode & 0o777) for path in project.glob("logs/*/results/*.pkl")]
    assert set(modes) == {"0o600"} and len(modes) >= 4
