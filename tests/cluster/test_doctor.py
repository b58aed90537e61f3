"""The doctor on real hosts: it finds nothing wrong, or names what is broken with a remedy."""

import json
import sys
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster import ways
from tests.launch.submit import DOCTOR

pytestmark = pytest.mark.usefixtures("forked_workers")

INTERFACE = "exp0"


def doctor(cluster, *flags: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Run the doctor, over ssh by default; return its document, and each check with its text."""
    hosts = ["--hosts", ",".join(cluster.hosts), "--ssh-config", str(cluster.ssh_config)]
    where = [] if "--launcher" in flags else hosts
    _, out, err = ways.call(cluster, [sys.executable, DOCTOR, "--json", *where, *flags])
    *_, found = map(json.loads, out.splitlines())  # the run that measures prints some as well
    assert found["kind"] == "checks", err
    words = {one["check"]: [one["verdict"], *one["found"], one["fix"]] for one in found["checks"]}
    return found, {check: " ".join(texts) for check, texts in words.items()}


@contextmanager
def broken(cluster, node: str, breaks: str, mends: str):
    done = cluster.exec(node, "sh", "-c", breaks)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        cluster.exec(node, "sh", "-c", mends)


def test_a_healthy_cluster_is_well_and_its_network_is_measured(cluster, tmp_path):
    found, words = doctor(cluster, "--logs-dir", str(tmp_path))
    assert found["exit_code"] == 0, found
    assert "works on 4 of 4" in words["reach"]
    assert "12 of 12 connections work" in words["every pair"]
    assert f"10.10.1.0/24 on {INTERFACE}: node0 10.10.1.1, node1 10.10.1.2" in words["network"]
    measured = found["network"]
    assert measured["hosts"] == ["node0", "node1", "node2", "node3"]
    pairs = {(one, two) for one in range(4) for two in range(4) if one != two}
    assert {(one["from"], one["to"]) for one in measured["pairs"]} == pairs
    assert {one["wrong"] for one in measured["collectives"]} == {0}


@pytest.mark.slow
def test_nodes_without_this_file_system_send_their_numbers_back(apart, tmp_path):
    flags = ["--remote-dir", "muster", "--network", "10.10.1.0/24", "--logs-dir", str(tmp_path)]
    found, words = doctor(apart, *flags)
    assert found["exit_code"] == 0, found
    assert "sent before each run" in words["code"]
    assert "2 of 2 connections work" in words["every pair"]
    assert found["network"]["hosts"][1] == "node1"


@pytest.mark.slow
def test_a_way_that_is_closed_in_one_direction_is_named(cluster):
    closed = "ip route add unreachable 10.10.1.4/32"
    # node3 reaches node1, but no answer returns: both directions fail, and no others
    with broken(cluster, "node1", closed, closed.replace("add", "del")):
        found, words = doctor(cluster, "--quick")
    pairs = words["every pair"]
    assert found["exit_code"] == 1 and pairs.startswith("FAIL")
    assert "node1 to node3" in pairs and "node3 to node1" in pairs
    assert "node2" not in pairs and "firewall" in pairs
