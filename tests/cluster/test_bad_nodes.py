"""`--exclude auto` avoids nodes that were the cause twice, also in a restart and a requeue."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.recoveries import slurm_daemons
from tests.cluster.ways import Run, Script, finish
from tests.launch.submit import wait_until


@pytest.fixture
def blamed():
    """Have a node of a cluster so often in the record of failures."""
    path = Path(os.environ["XDG_STATE_HOME"], "muster", "nodes.json")

    def blame(cluster, node, times):
        record = {"time_unix_s": time.time(), "cluster": cluster, "node": node}
        record |= {"run_id": "earlier", "message": f"{node} is gone"}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"failures": times * [record]}))

    yield blame
    path.unlink(missing_ok=True)


def hosts(run_dir) -> list[str]:
    records = sorted((run_dir / "agents").glob("node_?????.json"))
    return [json.loads(path.read_text())["host"] for path in records]


def test_a_restart_over_ssh_takes_another_node(cluster, tmp_path, blamed):
    """What it lost now, and once before, it does not take again."""

    def three_of_four(cluster, nodes, *flags):
        wanted = ["--nodes", "3", "--exclude", "auto", "--max-restarts", "1"]
        return ways.ssh(cluster, nodes, *wanted, *flags)

    blamed("ssh", "node1", 1)
    (tmp_path / "runs").mkdir()
    run = Run(cluster, three_of_four, tmp_path / "runs", program=Script(), ranks=3)
    assert hosts(run.run_dir) == ["node0", "node1", "node2"]
    run.agent(1).kill()
    assert wait_until(lambda: hosts(run.run_dir) == ["node0", "node2", "node3"])
    run.process.terminate()
    run.end()


def test_a_run_that_starts_on_one_names_it(cluster, tmp_path, blamed):
    blamed("ssh", "node0", 2)
    words = ["--logs-dir", str(tmp_path), "--workers", "manual", "--", "true"]
    code, _, err = finish(ways.start(cluster, ways.ssh(cluster, 1, *words)))
    assert code == 0, err
    assert "note: node0 was the cause of 2 failures in seven days, the last in earlier:" in err


def test_a_requeued_job_gets_other_nodes(cluster, tmp_path, blamed):
    def submitted(cluster, nodes, *flags):
        wanted = ["--exclude", "auto", "--workers", "manual"]
        return ways.slurm(cluster, 2, *wanted, *flags)

    blamed("muster", "node0", 2)
    (tmp_path / "runs").mkdir()
    run = Run(cluster, submitted, tmp_path / "runs", program=Script(), ranks=2)
    try:
        assert hosts(run.run_dir) == ["node1", "node2"]
        blamed("muster", "node2", 1)
        job = ways.running_job(cluster)
        for one in [*slurm_daemons(run, 1), run.agent(1)]:
            one.kill()
        show = ("scontrol", "show", "job", "--oneliner", job)
        assert wait_until(lambda: " Restarts=1 " in cluster.run(*show).stdout)
        assert wait_until(lambda: " ExcNodeList=node2 " in cluster.run(*show).stdout)
        again = run.run_dir / "attempts" / "0"
        assert wait_until(lambda: again.exists() and len(hosts(run.run_dir)) == 2)
        assert "node2" not in hosts(run.run_dir)
    finally:
        ways.cancel_all(cluster)
        finish(run.process)
