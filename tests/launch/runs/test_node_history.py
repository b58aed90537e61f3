"""A node that has caused two failures in seven days is bad: it is named, and can be avoided."""

import json
import subprocess
import sys
import time

import pytest

from configs.settings.launch import ONE_WORKER, LaunchConfig
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch.launchers.ssh import Ssh
from launch.runs import node_history
from launch.spec import NodeFacts, NodeSpec
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.commands import call
from tests.configs.made import make_config
from tests.launch.submit import JOBS
from tests.written import write

NODES = [
    NodeFacts(NodeSpec(host, ONE_WORKER), name, "python", "/muster", ONE_WORKER)
    for host, name in (("10.0.0.1", "gpu-n1"), ("n1", "n1"), ("n2", "n2"))
]
GONE = "error: lost contact with {} (10.0.0.9): its agent was killed, the node went down"


@pytest.fixture
def ended(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def end(message, cause="node_lost", rank=None, cluster="ssh", lost="n1"):
        agent = {"node": "n2", "ranks": [2]}
        record = {"code": 1, "message": message, "cause": cause, "rank": rank}
        run = write(tmp_path / "run", {"agents/node_00002.json": agent, "exit.json": record})
        node_history.note(run, cluster, NODES, lost)
        return [one["node"] for one in node_history.failures()]

    return end


def test_only_faults_of_a_node_count_against_it(ended):
    assert ended(GONE.format("n1")) == ["n1"]
    silent = "error: no message from gpu-n1 (10.0.0.1) for 15 s: is its network link down?"
    assert ended(silent, lost="gpu-n1")[1:] == ["10.0.0.1"]
    assert ended("CUDA error: uncorrectable ECC error", "program", 2)[2:] == ["n2"]
    for cause in ("program", "killed", "out_of_memory", "hang", "stopped"):
        assert len(ended("error: rank 2 on n2 died", cause, 2)) == 3
    assert len(ended("error: stopped by SIGTERM", lost=None)) == 3


ENDS_TOO = """
from pathlib import Path
from tests.launch.runs.test_node_history import *
known = node_history.failures
node_history.failures = lambda: [known(), time.sleep(0.3)][0]  # both read before one writes
node_history.note(Path(sys.argv[1]), "ssh", NODES, "n1")
"""


def test_runs_that_end_at_the_same_moment_are_all_written_down(ended, tmp_path):
    ended(GONE.format("n1"))
    command = [sys.executable, "-c", ENDS_TOO, str(tmp_path / "run")]
    for process in [subprocess.Popen(command, cwd=CHECKOUT) for _ in range(3)]:
        assert process.wait() == 0
    assert len(node_history.failures()) == 4


def test_two_failures_in_seven_days_make_a_node_bad(ended, monkeypatch, tmp_path):
    ended(GONE.format("n1"))
    assert node_history.bad_nodes("ssh") == {}
    ended(GONE.format("n1"), cluster="other")
    assert node_history.bad_nodes("ssh") == {}
    path = tmp_path / "state" / "muster" / "nodes.json"
    found = json.loads(path.read_text())["failures"]
    path.write_text(json.dumps({"failures": [*found, {"node": "n1"}]}))  # as of another version
    ended(GONE.format("n1"))
    (line,) = node_history.warnings("ssh", NODES)
    assert (
        line.startswith("n1 ")
        and " 2 failures " in line
        and " in run: lost contact with n1 (10." in line
    )
    assert node_history.excluded("n7,auto", lambda: "ssh") == "n7,n1"
    assert node_history.excluded("auto", lambda: "none") is None
    assert node_history.excluded("n[1,3]", pytest.fail) == "n[1,3]"
    later = time.time() + node_history.NODE_FAILURES_COUNT_FOR_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert node_history.bad_nodes("ssh") == {} and node_history.failures() == []


def hosts_of(exclude, nodes, hosts="n1,n2,n3"):
    launch = make_config(LaunchConfig, hosts=hosts, nodes=nodes)
    launcher = Ssh(Settings(launch, SshConfig(), SlurmConfig(exclude=exclude)))
    return [node.spec.host for node in launcher.assume().nodes]


def test_excluded_hosts_are_left_out(ended):
    for _ in range(2):
        ended(GONE.format("n1"))
    assert hosts_of(None, None) == ["n1", "n2", "n3"]
    assert hosts_of("auto", None) == ["n2", "n3"]
    assert hosts_of("auto", 2) == ["n2", "n3"]
    assert hosts_of("auto", 3) == ["n1", "n2", "n3"]  # without it there are too few
    assert hosts_of("auto,n2", 1) == ["n3"]
    assert hosts_of("n[2-3]", None) == ["n1"]
    with pytest.raises(UsageError, match=r"--exclude n1 .* n1$"):
        hosts_of("n1", None, "n1")
    with pytest.raises(UsageError, match="--nodes 3, but n1,n2,n3 has only 1"):
        hosts_of("n[1-2]", 3)


def test_bad_nodes_are_listed_and_forgotten(ended):
    ended(GONE.format("n1"))
    ended(GONE.format("n2"), lost="n2")

    def jobs(*words):
        done = call(sys.executable, JOBS, "nodes", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "n1 (ssh), run: lost contact with n1 (10.0.0.9)" in jobs()
    assert jobs("--clear", "n1").count("\n") == 1
    (found,) = map(json.loads, jobs("--json").splitlines())
    assert found["kind"] == "nodes" and [one["node"] for one in found["failures"]] == ["n2"]
    assert jobs("--clear") == "no node has caused a failure in seven days\n"
    assert node_history.failures() == []
