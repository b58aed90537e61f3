"""Real probes on this machine, of nodes that answer or do not; and clocks over slow links."""

import os
import re
import sys
from dataclasses import replace

import pytest

from configs.settings.launch import WorkersPerNode
from launch.checks import examination
from launch.checks.examination import clock_skew_s
from launch.checks.findings import lines
from launch.nodes.network_choice import Choice
from launch.nodes.survey import Answer, local_transport
from launch.spec import NodeFacts, NodeSpec


def look(transport, folder, **more):
    def choose(probes):
        return Choice("127.0.0.0/8", ("127.0.0.1",) * len(probes))

    disks = {"run folder": folder / "logs", "data": folder}
    return examination.look(transport, "local", choose, python=sys.executable, disks=disks, **more)


@pytest.mark.needs("ip")
def test_doctor_finds_nothing_on_this_machine_as_three_nodes(tmp_path):
    cores = len(os.sched_getaffinity(0))
    workers = WorkersPerNode(cores)
    here = NodeFacts(NodeSpec("localhost", workers), "node0", "python", "/", workers)
    found = look(local_transport(3), tmp_path, planned=[here] * 3)
    assert lines(found, "FAIL") == [] and len(found) == 10
    texts = {row.check: row.found[0] for row in found}
    assert texts["every pair"].startswith("6 of 6 connections work")
    assert re.search(r"\d GB", texts["free disk"]) and list(tmp_path.iterdir()) == []
    assert texts["code"] == "all nodes share this checkout"
    # all three share this machine's cores
    assert texts["cores"].startswith(f"{3 * cores} workers share ")
    assert re.fullmatch(r"within \d+ ms of this machine's", texts["clocks"])


@pytest.mark.needs("ip")
def test_node_that_cannot_start_is_named_and_others_are_examined(tmp_path):
    well = local_transport(3)
    broken = (*well.commands[:2], ("sh", "-c", "cat >/dev/null & echo no python >&2; exit 127"))
    found = look(replace(well, commands=broken), tmp_path)
    assert lines(found, "FAIL") == ["reach: node2: python failed: no python; see above"]
    assert {row.check: row.found[0] for row in found}["every pair"].startswith("2 of 2")


def test_the_quickest_ping_knows_best():
    """Half of its round trip is subtracted."""
    slow, quick = Answer(9.9, 0.0, 10.0), Answer(20.501, 20.0, 20.002)
    assert clock_skew_s([slow, quick]) == pytest.approx(0.5)
    assert clock_skew_s([Answer(1005.0, 1000.0, 1005.0)]) == pytest.approx(2.5)
    assert clock_skew_s([]) is None
