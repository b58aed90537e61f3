"""`--exclude auto` avoids nodes that caused two failures, also after a restart or a requeue."""

import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.recoveries import GONE, slurm_daemons
from tests.cluster.ways import MANUAL, Run, Script
from tests.launch.submit import wait_until
from tests.train.workers import read_json

pytestmark = pytest.mark.slow


@pytest.fixture
def failures():
    """The path of the record of failures."""
    path = Path(os.environ["XDG_STATE_HOME"], "muster", "nodes.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


def blame(failures: Path, cluster: str, node: str, times: int) -> None:
    """Write a record in which a node of a cluster is blamed this many times."""
    record = {"time_unix_s": time.time(), "cluster": cluster, "node": node}
    record |= {"run_id": "earlier", "message": f"{node} is gone"}
    failures.write_text(json.dumps({"failures": times * [record]}))


def test_a_restart_over_ssh_takes_another_node(cluster, tmp_path, failures):
    """A node that is lost now, and was lost once before, is not used again.

    It may be the first node, at whose address workers meet: the next node then takes over. A later
    run that starts on a node with failures names the node.
    """

    def three_of_four(cluster, nodes, *flags):
        wanted = ["--nodes", "3", "--exclude", "auto", "--max-restarts", "1"]
        return ways.ssh(cluster, 4, *wanted, *MANUAL, *flags)

    blame(failures, "ssh", "node0", 1)
    run = Run(cluster, three_of_four, tmp_path / "runs", program=Script(), nodes=3)
    assert run.hosts() == ["node0", "node1", "node2"]
    run.agent(0).kill()
    wait_until(lambda: run.hosts() == ["node1", "node2", "node3"])
    run.process.terminate()
    run.end()
    words = ["--logs-dir", str(tmp_path), *MANUAL, "--", "true"]
    blame(failures, "ssh", "node1", 2)
    err = ways.succeed(cluster, ways.ssh(cluster, 2, *words))[1]
    assert re.search(r"note: node1 .*\b2 failures .* in earlier:", err), err


def test_a_requeued_job_gets_other_nodes(cluster, tmp_path, failures):
    """So does a job whose node dies as a whole, which only Slurm notices."""

    def submitted(cluster, nodes, *flags):
        return ways.slurm(cluster, nodes, "--exclude", "auto", *MANUAL, *flags)

    blame(failures, "muster", "node0", 2)
    run = Run(cluster, submitted, tmp_path / "runs", program=Script(), nodes=2)
    try:
        assert run.hosts() == ["node1", "node2"]
        blame(failures, "muster", "node2", 1)
        job = ways.running_job(cluster)
        for one in slurm_daemons(run, 1):
            one.kill()
        ways.wait_for_requeue(cluster, job)
        show = ("scontrol", "show", "job", "--oneliner", job)
        wait_until(lambda: " ExcNodeList=node2 " in cluster.run(*show).stdout)
        last = read_json(failures)["failures"][-1]
        assert last["node"] == "node2" and re.search(GONE, last["message"])
        again = run.run_dir / "attempts" / "0"
        wait_until(lambda: again.exists() and len(run.hosts()) == 2)
        assert "node2" not in run.hosts()
    finally:
        ways.cancel_all(cluster)
        run.end()
