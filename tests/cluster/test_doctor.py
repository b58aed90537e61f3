"""The doctor on real hosts: all well, and each thing that is broken is named with its remedy."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.preload import interpreter

REPOSITORY = Path(__file__).parents[2]
DOCTOR = str(REPOSITORY / "launch" / "doctor.py")
INTERFACE = "exp0"
PYTHON = {"MUSTER_PYTHON": sys.executable}


@pytest.fixture(autouse=True)
def _warm_workers(monkeypatch):
    monkeypatch.setitem(PYTHON, "MUSTER_PYTHON", interpreter())


def doctor(cluster, *flags: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    wide = ("env", "COLUMNS=200", *(f"{name}={value}" for name, value in PYTHON.items()))
    return cluster.run(*wide, sys.executable, DOCTOR, *flags, timeout_s=timeout_s)


def ssh_flags(cluster) -> list[str]:
    return ["--hosts", ",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config)]


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
    flags = ssh_flags(cluster) if launcher == "ssh" else ["--launcher", "slurm", "--nodes", "4"]
    done = doctor(cluster, *flags, "--logs-dir", str(tmp_path))
    assert done.returncode == 0, (done.stdout, done.stderr)
    message = rows(done.stdout)
    assert message["reach"].endswith("works on 4 of 4")
    assert "12 of 12 connections work" in message["every pair"]
    assert f"10.10.1.0/24 on {INTERFACE}: node0 10.10.1.1, node1 10.10.1.2" in message["network"]
    assert "FAIL" not in done.stdout and "busbw(GB/s)" in done.stdout
    (run_dir,) = tmp_path.iterdir()
    measured = json.loads((run_dir / "network.json").read_text())
    assert measured["hosts"] == ["node0", "node1", "node2", "node3"]
    assert {(one["from"], one["to"]) for one in measured["pairs"]} == {
        (one, two) for one in range(4) for two in range(4) if one != two
    }
    assert {one["wrong"] for one in measured["collectives"]} == {0}


def test_nodes_without_this_file_system_send_their_numbers_back(
    other_cluster: Callable[..., object], tmp_path
):
    environment = Path(sys.executable).parent.parent
    cluster = other_cluster(
        "--nodes", "3", "--private-home", "--control-network",
        env={"MUSTER_BED_VENV": str(environment)},
    )  # fmt: skip
    PYTHON.clear()  # each node has its own, in ~/muster
    try:
        flags = [*ssh_flags(cluster), "--remote-dir", "muster", "--network", "10.10.1.0/24"]
        done = doctor(cluster, *flags, "--logs-dir", str(tmp_path))
    finally:
        PYTHON["MUSTER_PYTHON"] = sys.executable
    assert done.returncode == 0, (done.stdout, done.stderr)
    message = rows(done.stdout)
    assert "each run sends it first" in message["code"]
    assert "6 of 6 connections work" in message["every pair"]
    (run_dir,) = tmp_path.iterdir()
    assert json.loads((run_dir / "network.json").read_text())["hosts"][2] == "node2"


def test_a_way_that_is_closed_in_one_direction_is_named(cluster):
    closed = "ip route add unreachable 10.10.1.4/32"
    # node3 can reach node1, whose answers cannot: both ways fail, and no other
    with broken(cluster, "node1", closed, closed.replace("add", "del")):
        done = doctor(cluster, *ssh_flags(cluster), "--quick")
    assert done.returncode == 1
    pairs = rows(done.stdout)["every pair"]
    assert pairs.startswith("FAIL") and "node1 to node3" in pairs and "node3 to node1" in pairs
    assert "node2" not in pairs and "is a firewall between them?" in pairs


def test_a_link_that_is_down_is_named(other_cluster: Callable[..., object]):
    cluster = other_cluster("--nodes", "3", "--control-network")
    with broken(cluster, "node2", f"ip link set {INTERFACE} down", f"ip link set {INTERFACE} up"):
        done = doctor(cluster, *ssh_flags(cluster), "--network", "10.10.1.0/24", "--quick")
    assert done.returncode == 1
    message = rows(done.stdout)
    assert "no node reaches node2 (10.10.1.3)" in message["every pair"]
    assert "node0 to node1" not in message["every pair"]


def test_a_partition_that_is_too_small_is_told_at_once(cluster):
    flags = ["--launcher", "slurm", "--nodes", "3", "--partition", "short", "--quick"]
    done = doctor(cluster, *flags, timeout_s=300)
    assert done.returncode == 1
    assert "FAIL Slurm would not take this job: " in rows(done.stdout)["reach"]


def test_one_slow_link_is_the_verdict(other_cluster: Callable[..., object], tmp_path):
    # so slow that the link, and not what else the machine does, decides
    cluster = other_cluster("--nodes", "3", "--rate", "500mbit")
    limit = f"tc qdisc replace dev {INTERFACE} root tbf rate 100mbit burst 64kb latency 50ms"
    with broken(cluster, "node1", limit, f"tc qdisc del dev {INTERFACE} root"):
        done = doctor(cluster, *ssh_flags(cluster), "--logs-dir", str(tmp_path))
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert re.search(
        r"slow: .* 0\.0\d+ Gbit/s; .*; all slow pairs are with node1: look at its link",
        done.stdout,
    ), done.stdout  # fmt: skip
