"""`launch/testbed.py` makes a cluster that behaves like a real one, and leaves nothing of it."""

import os
import pwd
import shlex
import sys
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.cluster.testbeds import TESTBED
from tests.commands import call

NODES = ["node0", "node1", "node2", "node3"]
CORES = "import os; print(sorted(os.sched_getaffinity(0)))"
RESOLVE = "import socket; print(socket.gethostbyname(socket.gethostname()))"


def test_nodes_have_names_and_know_each_other(cluster):
    assert cluster.hosts == NODES
    for node in NODES:
        assert cluster.exec(node, "hostname").stdout == f"{node}\n"
    for number, node in enumerate(NODES):
        found = cluster.exec("node0", "getent", "hosts", node).stdout
        assert found.split() == [f"10.10.1.{number + 1}", node]
    assert cluster.exec("node2", sys.executable, "-c", RESOLVE).stdout == "10.10.1.3\n"
    assert set(cluster.exec("node2", "ls", "/sys/class/net").stdout.split()) == {"exp0", "lo"}


@pytest.mark.slow
def test_exec_passes_on_where_one_is_and_how_it_ends(cluster, tmp_path):
    inside = [sys.executable, TESTBED, "exec", "node1", "--"]
    done = call(*inside, "sh", "-c", "pwd; cat; exit 7", cwd=tmp_path, stdin="given")
    assert (done.returncode, done.stdout) == (7, f"{tmp_path}\ngiven")
    assert cluster.exec("node1", "no-such-command").returncode == 127
    unknown = cluster.exec("node9", "hostname")
    assert unknown.returncode == 2
    assert (
        unknown.stderr
        == "error: exec node9: no such node\ntip: choose from node0, node1, node2, node3\n"
    )


def test_ssh_leads_from_everywhere_to_everywhere(cluster):
    for node in NODES:
        assert cluster.ssh(node, "hostname").stdout == f"{node}\n"
    onward = f"ssh -F {cluster.ssh_config} node3 hostname"
    assert cluster.ssh("node0", onward).stdout == "node3\n"
    assert cluster.ssh("10.10.1.2", "hostname").stdout == "node1\n"


@pytest.mark.slow
def test_each_node_has_its_share_of_the_cores(cluster):
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // 4)
    for number, node in enumerate(NODES):
        own = sorted(cores[(number * share + i) % len(cores)] for i in range(share))
        inside = [sys.executable, "-c", CORES]
        for done in (
            cluster.exec(node, *inside),
            cluster.ssh(node, shlex.join(inside)),
            cluster.run("srun", f"--nodelist={node}", *inside),
        ):
            assert done.stdout == f"{own}\n", done


@pytest.mark.slow
def test_with_a_control_network_the_name_is_on_the_slow_side(apart):
    assert apart.exec("node1", sys.executable, "-c", RESOLVE).stdout == "192.168.77.2\n"
    names = set(apart.exec("node1", "ls", "/sys/class/net").stdout.split())
    assert names == {"ctl0", "exp0", "lo"}
    client = apart.ssh("node1", "echo $SSH_CONNECTION").stdout.split()
    assert client[0] == "192.168.77.254" and client[2] == "192.168.77.2"
    assert apart.run("srun", "--nodes=2", "hostname").returncode == 0


@pytest.mark.slow
def test_a_private_home_is_bare_metal(apart, tmp_path):
    home = pwd.getpwuid(0).pw_dir
    (tmp_path / "shared").touch()
    assert apart.ssh("node0", f"pwd; touch ~/mine; ls {tmp_path}/shared").returncode == 2
    assert apart.ssh("node0", "ls").stdout.split() == ["mine", "muster"]
    assert apart.ssh("node1", "ls").stdout.split() == ["muster"]
    assert apart.exec("node0", "ls", private=True).stdout.split() == ["mine", "muster"]
    assert apart.exec("node0", "pwd", private=True).stdout == f"{home}\n"
    assert not (Path(home) / "mine").exists()
    assert apart.ssh("node0", f"rm ~/mine; ls {CHECKOUT}/launch").returncode == 2
    # Slurm's side has the shared file system.
    assert apart.run("srun", "--nodes=2", "ls", str(CHECKOUT / "launch")).returncode == 0
    python = apart.ssh("node1", "~/muster/.venv/bin/python -c 'import sys; print(sys.prefix)'")
    assert python.stdout == f"{home}/muster/.venv\n", python.stderr
    assert apart.ssh("node1", "touch ~/muster/.venv/x").returncode == 1
    assert apart.ssh("node0", f"ssh -F {apart.ssh_config} node1 hostname").stdout == "node1\n"
