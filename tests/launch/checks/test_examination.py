"""Real probes on this machine, of nodes that answer or do not; and clocks, however slow the way."""

import re
import sys
from dataclasses import replace

import pytest

from launch.checks import examination
from launch.checks.examination import clock_skew_s
from launch.nodes.network_choice import Choice
from launch.nodes.survey import Answer, here


def look(transport, folder):
    def choose(probes):
        return Choice("127.0.0.0/8", ("127.0.0.1",) * len(probes))

    disks = {"run folder": folder / "logs", "data": folder}
    return examination.look(transport, "local", choose, python=sys.executable, disks=disks)


def test_this_machine_as_three_nodes_is_well(tmp_path):
    found = look(here(3), tmp_path)
    assert found.problems == [] and len(found.rows) == 8
    lines = {row.check: row.found[0] for row in found.rows}
    assert lines["every pair"].startswith("6 of 6 connections work")
    assert re.search(r"\d GB", lines["free disk"]) and list(tmp_path.iterdir()) == []
    assert lines["code"] == "all see this checkout"
    assert re.fullmatch(r"within \d+ ms of this machine", lines["clocks"])


def test_a_node_that_cannot_start_is_named_and_the_others_are_looked_at(tmp_path):
    well = here(3)
    broken = (*well.commands[:2], ("sh", "-c", "cat >/dev/null & echo no python >&2; exit 127"))
    found = look(replace(well, commands=broken), tmp_path)
    assert found.problems == ["reach: node2: python failed: no python; see above"]
    assert {row.check: row.found[0] for row in found.rows}["every pair"].startswith("2 of 2")


@pytest.mark.parametrize("round_trip_s", [0.0, 0.01, 5.0])
def test_half_of_the_way_is_taken_off(round_trip_s):
    ahead_s = 2.5
    node = 1000.0 + round_trip_s / 2 + ahead_s
    assert clock_skew_s([Answer(node, 1000.0, 1000.0 + round_trip_s)]) == pytest.approx(ahead_s)


def test_the_quickest_ping_knows_best():
    slow, quick = Answer(9.9, 0.0, 10.0), Answer(20.501, 20.0, 20.002)
    assert clock_skew_s([slow, quick]) == pytest.approx(0.5)
    assert clock_skew_s([]) is None
