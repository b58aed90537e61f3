"""Functions from Python: four ranks on real Slurm, and results of nodes behind real ssh."""

import json
import sys

import pytest

from tests.cluster import ways

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, sys
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

if __name__ == "__main__":
    flags = json.loads(sys.argv[1])
    job = muster.launch(work, 2, env={"KEY": "mine"}, **flags)
    print(json.dumps([(total.item(), *more) for total, *more in job.results(timeout_s=300)]))
    try:
        muster.launch(work, 13, env={"KEY": "mine"}, **flags).results(timeout_s=300)
    except muster.RunFailed as error:
        print(json.dumps([error.rank, error.host, str(error), repr(error.__cause__)]))
"""


@pytest.fixture
def run_script(project):
    """Run the script to its end; check what all ranks return, and what one of them raises."""
    (project / "script.py").write_text(SCRIPT)

    def run_script(cluster, way: str, nodes: int) -> None:
        flags = {"nodes": nodes, "nproc_per_node": 2, "launcher": way}
        if way == "ssh":
            flags |= {"hosts": cluster.hosts[:nodes], "ssh_config": str(cluster.ssh_config)}
        python = ways.PYTHON.get("MUSTER_PYTHON", sys.executable)  # its workers use the same
        argv = [python, "script.py", json.dumps(flags)]
        out, _ = ways.succeed(cluster, argv, project)
        results, (rank, host, text, cause) = map(json.loads, out.splitlines())
        total = 2 * sum(range(2 * nodes))
        assert results == [[total, one, "mine"] for one in range(2 * nodes)]
        assert (rank, host) == (3, "node1")
        assert cause == "ValueError('sample 17 is empty')"
        assert text.startswith("rank 3 on node1: ValueError: sample 17 is empty\n\nIn the worker:")

    return run_script


@pytest.mark.usefixtures("forked_workers")
def test_results_and_the_exception_of_four_ranks(cluster, run_script):
    run_script(cluster, "slurm", 2)


@pytest.mark.slow
def test_nodes_with_disks_of_their_own_send_results_home(apart, run_script, project):
    run_script(apart, "ssh", 2)
    modes = [oct(path.stat().st_mode & 0o777) for path in project.glob("logs/*/results/*.pkl")]
    assert set(modes) == {"0o600"} and len(modes) >= 4
