"""Networks as they are elsewhere: two cards in one network, IPv6, and more than a few nodes."""

import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from configs.settings.launch import ONE_WORKER
from configs.settings.remote import SshConfig
from launch.spec import NodeSpec
from launch.ssh import openssh
from tests.cluster import recoveries, ways
from tests.cluster.recoveries import Fault
from tests.cluster.testbeds import TESTBED, Cluster
from tests.cluster.ways import MANUAL, SHORT, by_hand
from tests.commands import ended
from tests.train.workers import read_json

pytestmark = pytest.mark.usefixtures("forked_workers")

# Each worker stays until all are there.
MEETS = """#!/bin/sh
touch "$1/$RANK"
until [ "$(ls "$1" | wc -l)" -eq "$WORLD_SIZE" ]; do sleep 0.2; done
"""


def workers_that_meet(cluster: Cluster, hosts: str, folder: Path, per_node: int) -> int:
    """Run a program without torch; return how many workers were there at the same time."""
    project, met = folder / "project", folder / "met"
    project.mkdir()
    met.mkdir()
    (project / "meets.sh").write_text(MEETS)
    (project / "meets.sh").chmod(0o755)
    flags = ["--logs-dir", str(folder / "logs"), "--run-id", "run", *MANUAL]
    words = ["--nproc-per-node", str(per_node), "--", "./meets.sh", str(met)]
    config = str(cluster.ssh_config)
    ways.succeed(cluster, [ways.SSH, hosts, "--ssh-config", config, *flags, *words], project)
    return len(list(met.iterdir()))


@pytest.mark.slow
def test_hosts_file_address_chooses_between_two_cards_of_a_network(other_cluster, tmp_path):
    """Once, with two cards, the network was not found, and address= was ignored."""
    cluster = other_cluster("--nodes", "2")
    for node in range(2):
        for words in (
            f"link add muster-exp10{node} type veth peer name exp1 netns muster-node{node}",
            f"link set muster-exp10{node} master muster-br0 up",
            f"-n muster-node{node} address add 10.10.1.10{node + 1}/24 dev exp1",
            f"-n muster-node{node} link set exp1 up",
        ):
            subprocess.run(["ip", *words.split()], check=True)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0 address=10.10.1.101\nnode1 address=10.10.1.102\n")
    argv = [ways.SSH, str(hosts), "--ssh-config", str(cluster.ssh_config), *SHORT]
    argv += ["--logs-dir", str(tmp_path)]
    out, _ = ways.succeed(cluster, argv)
    assert "network: node0 10.10.1.101 (exp1), node1 10.10.1.102 (exp1)" in out
    hosts.write_text("node0 address=10.10.1.7\nnode1\n")
    code, _, err = ways.call(cluster, argv)
    assert code == 2 and "node0 does not have its given address 10.10.1.7" in err
    assert workers_that_meet(cluster, "node0,node1", tmp_path, 1) == 2


@pytest.mark.slow
@pytest.mark.parametrize("node", [2, 0])
def test_gradient_link_that_goes_down_ends_run_and_is_named(other_cluster, tmp_path, node):
    """Nothing is sent there in the meantime; the kernel alone would notice after two hours."""
    cluster = other_cluster("--nodes", "3", "--control-network")
    run = ways.Run(cluster, ways.ssh, tmp_path, *MANUAL, program=SaysNothing(), nodes=3)
    down = time.time()
    cluster.exec(f"node{node}", "ip", "link", "set", "exp0", "down")
    run.ends()
    code, out, err = run.end()
    says = f"no message from node{node} (10.10.1.{node + 1}) for 15 s"
    assert code == 1 and says in err, out + err
    ends = [read_json(path) for path in run.run_dir.glob("agents/*.exit.json")]
    assert len(ends) == 3  # each has learned it through the other network
    assert max(end["noticed_unix_s"] for end in ends) - down < 600.0


def lose_node_0(run: ways.Run) -> None:
    """Kill node 0's agent, and the sshd through which it could be started again."""
    agent = run.agent(0)
    logins = recoveries.daemons_of(recoveries.network_of(agent.pid), "sshd", "sshd-session")
    for process in [*logins, agent]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.slow
def test_the_other_nodes_go_on_without_node_0(other_cluster, tmp_path):
    """They connect to the node that takes its place as node 0."""
    cluster = other_cluster("--nodes", "4")
    flags = ("--nodes", "2:4", "--max-restarts", "1")
    run = ways.Run(cluster, ways.ssh, tmp_path / "runs", *flags, program=ways.SavingScript())
    recoveries.recover(run, Fault(lose_node_0, "lost contact with"))
    assert run.hosts() == ["node1", "node2", "node3"], run.printed()
    lost = read_json(run.run_dir / "attempts/0/exit.json")
    assert lost["message"].startswith("error: lost contact with node0 (10.10.1.1): ")
    run.process.terminate()
    run.ends()


class SaysNothing(ways.Trainer):
    """A program that sends nothing to other nodes."""

    output = "*/workers/rank_0000[0-2].out"

    output_bytes = 0

    def words(self, folder: Path) -> list[str]:
        return ["--", "sh", "-c", "echo begun; exec sleep 100000", str(folder)]


@pytest.mark.slow
def test_ipv6_in_hosts_and_as_master_ip(other_cluster, tmp_path):
    cluster = other_cluster("--nodes", "2", "--ipv6")
    hosts = "fd00:10:10:1::1,root@[fd00:10:10:1::2]:22"
    assert workers_that_meet(cluster, hosts, tmp_path, 2) == 4
    agents = tmp_path / "logs" / "run" / "agents"
    found = [read_json(path) for path in sorted(agents.glob("node_0000?.json"))]
    assert [one["address"] for one in found] == ["fd00:10:10:1::1", "fd00:10:10:1::2"]
    assert [one["interface"] for one in found] == ["exp0", "exp0"]
    assert len(by_hand(cluster, 2, tmp_path, address="fd00:10:10:1::1")) == 4


@pytest.mark.slow
def test_sixty_four_workers_of_a_program_without_torch(other_cluster, tmp_path):
    cluster = other_cluster("--nodes", "16")
    assert workers_that_meet(cluster, "node[0-15]", tmp_path, 4) == 64
    ends = [read_json(one) for one in tmp_path.glob("logs/run/agents/*.exit.json")]
    assert [one["code"] for one in ends] == [0] * 16


@pytest.mark.slow
def test_a_login_that_a_busy_server_drops_is_tried_again(cluster, tmp_path):
    """An sshd takes one login at a time, as a jump host may take only ten for sixty nodes."""
    usual = (cluster.ssh_config.parent / "ssh" / "node1.conf").read_text()
    conf = tmp_path / "sshd.conf"
    conf.write_text(re.sub("MaxStartups .*", "MaxStartups 1:100:1", usual))
    sshd = [str(shutil.which("sshd")), "-D", "-e", "-f", str(conf), "-p", "2222"]
    argv = [sys.executable, TESTBED, "exec", "node1", "--", *sshd]
    with (
        ended(subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        until(server, "listening")
        config = SshConfig(ssh_config=cluster.ssh_config)
        with socket.create_connection(("10.10.1.2", 2222)) as other:
            assert other.recv(4) == b"SSH-"  # and sends nothing itself
            log_in = openssh.command(NodeSpec("node1", ONE_WORKER, port=2222), config, ["id"])
            login = pool.submit(subprocess.run, log_in, capture_output=True, text=True)
            until(server, "maxstartups")
        done = login.result(timeout=300)
        server.terminate()  # and, with it, sshd
        server.wait()
    assert done.returncode == 0 and done.stdout.startswith("uid=0"), done.stderr


def until(server: subprocess.Popen[str], words: str) -> None:
    """Wait until the server prints a line with `words`."""
    assert server.stderr is not None
    while words not in (line := server.stderr.readline()).lower():
        assert line
