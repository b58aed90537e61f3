"""A node reports its addresses even without iproute2."""

import os
import sys

import pytest

from launch.nodes import node_facts


def test_node_without_iproute2_reports_its_addresses(monkeypatch, tmp_path):
    with_ip = node_facts._interfaces()
    monkeypatch.setenv("PATH", str(tmp_path))
    ipv4 = [entry for entry in with_ip if ":" not in entry["address"]]
    assert [entry for entry in node_facts._interfaces() if ":" not in entry["address"]] == ipv4


def test_node_without_iproute2_and_psutil_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(OSError, match="install iproute2 or psutil"):
        node_facts._interfaces()


def test_failure_that_names_half_a_character_is_a_reason(monkeypatch):
    """The path of a file may contain one if it is not valid UTF-8."""

    def fail(question):
        raise OSError(os.fsdecode(b"no /home/\xff"))

    monkeypatch.setattr(node_facts, "tell_time", fail)
    assert node_facts.reply({"function": "tell_time"}) == {"failed": r"no /home/\udcff"}
