"""The doctor on real hosts: all well, and each thing that is broken is named with its remedy."""

import re
import sys
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from tests.cluster import ways
from tests.cluster.ways import DOCTOR
from tests.train.workers import read_json

pytestmark = pytest.mark.usefixtures("warm_workers")

INTERFACE = "exp0"


def doctor(cluster, *flags: str) -> tuple[int, str, str]:
    """Over ssh, where no launcher is named."""
    hosts = ["--hosts", ",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config)]
    where = [] if "--launcher" in flags else hosts
    return ways.call(cluster, ["env", "COLUMNS=200", sys.executable, DOCTOR, *where, *flags])


def rows(out: str) -> dict[str, str]:
    """Verdict and all words of each row, by its check."""
    found: dict[str, str] = {}
    name = ""
    for line in out.splitlines():
        if match := re.match(r" (\S.*?) +(ok|warn|FAIL) +(.*)", line):
            name = match[1]
            found[name] = f"{match[2]} {match[3]}"
        elif name and line.startswith("   "):
            found[name] += " " + line.strip()
    return {name: " ".join(text.split()) for name, text in found.items()}


@contextmanager
def broken(cluster, node: str, breaks: str, mends: str):
    done = cluster.exec(node, "sh", "-c", breaks)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        cluster.exec(node, "sh", "-c", mends)


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
def test_a_healthy_cluster_is_well_and_its_network_is_measured(cluster, launcher, tmp_path):
    flags = [] if launcher == "ssh" else ["--launcher", "slurm", "--nodes", "4"]
    code, out, err = doctor(cluster, *flags, "--logs-dir", str(tmp_path))
    assert code == 0, (out, err)
    message = rows(out)
    assert message["reach"].endswith("works on 4 of 4")
    assert "12 of 12 connections work" in message["every pair"]
    assert f"10.10.1.0/24 on {INTERFACE}: node0 10.10.1.1, node1 10.10.1.2" in message["network"]
    assert "FAIL" not in out and "busbw(GB/s)" in out
    (run_dir,) = tmp_path.iterdir()
    measured = read_json(run_dir / "network.json")
    assert measured["hosts"] == ["node0", "node1", "node2", "node3"]
    pairs = {(one, two) for one in range(4) for two in range(4) if one != two}
    assert {(one["from"], one["to"]) for one in measured["pairs"]} == pairs
    assert {one["wrong"] for one in measured["collectives"]} == {0}


def test_nodes_without_this_file_system_send_their_numbers_back(apart, tmp_path):
    flags = ["--remote-dir", "muster", "--network", "10.10.1.0/24", "--logs-dir", str(tmp_path)]
    code, out, err = doctor(apart, *flags)
    assert code == 0, (out, err)
    assert "each run sends it first" in rows(out)["code"]
    assert "2 of 2 connections work" in rows(out)["every pair"]
    (run_dir,) = tmp_path.iterdir()
    assert read_json(run_dir / "network.json")["hosts"][1] == "node1"


def test_a_way_that_is_closed_in_one_direction_is_named(cluster):
    closed = "ip route add unreachable 10.10.1.4/32"
    # node3 can reach node1, whose answers cannot: both ways fail, and no other
    with broken(cluster, "node1", closed, closed.replace("add", "del")):
        code, out, _ = doctor(cluster, "--quick")
    pairs = rows(out)["every pair"]
    assert code == 1 and pairs.startswith("FAIL")
    assert "node1 to node3" in pairs and "node3 to node1" in pairs
    assert "node2" not in pairs and "is a firewall between them?" in pairs


def test_a_partition_that_is_too_small_is_told_at_once(cluster):
    flags = ["--launcher", "slurm", "--nodes", "3", "--partition", "short", "--quick"]
    code, out, _ = doctor(cluster, *flags)
    assert code == 1
    assert "FAIL Slurm would not take this job: " in rows(out)["reach"]


def test_a_slow_link_is_the_verdict_and_one_that_is_down_is_named(
    other_cluster: Callable[..., object], tmp_path
):
    # so slow that the link, and not what else the machine does, decides
    cluster = other_cluster("--nodes", "3", "--rate", "500mbit", "--control-network")
    network = ["--network", "10.10.1.0/24", "--logs-dir", str(tmp_path)]
    limit = f"tc qdisc replace dev {INTERFACE} root tbf rate 100mbit burst 64kb latency 50ms"
    with broken(cluster, "node1", limit, f"tc qdisc del dev {INTERFACE} root"):
        code, out, err = doctor(cluster, *network)
    assert code == 0, (out, err)
    slow = r"slow: .* 0\.0\d+ Gbit/s; .*; all slow pairs are with node1: look at its link"
    assert re.search(slow, out), out
    with broken(cluster, "node2", f"ip link set {INTERFACE} down", f"ip link set {INTERFACE} up"):
        code, out, _ = doctor(cluster, *network, "--quick")
    assert code == 1
    pairs = rows(out)["every pair"]
    assert "no node reaches node2 (10.10.1.3)" in pairs and "node0 to node1" not in pairs
