"""Nodes of a job that are gone are distinguished from nodes that answer."""

import pytest

from launch.slurm.node_health import silent_nodes
from tests.written import executable


@pytest.fixture
def ask_nodes(tmp_path, monkeypatch):
    """A function that lists the nodes that do not answer, with these cases in place of srun."""
    monkeypatch.setattr("launch.slurm.node_health.SLURM_NODES_ANSWER_S", 6.0)

    def ask(cases: str) -> list[str]:
        executable(tmp_path / "srun", f'#!/bin/sh\ncase "$*" in {cases} esac; exit 1\n')
        return silent_nodes(["node0", "node1", "node2"], {"PATH": f"{tmp_path}:/usr/bin:/bin"})

    return ask


@pytest.mark.parametrize(
    ("node", "gone"), [("node1", "exec sleep 1000"), ("node1", "exit 1"), ("node0", "exit 1")]
)
def test_a_node_that_does_not_answer_is_left_out(ask_nodes, node, gone):
    assert ask_nodes(f"*={node}*) {gone} ;; *) exit 0 ;;") == [node]


def test_nodes_are_not_gone_because_the_controller_is_busy(ask_nodes):
    """It handles one request after another, each for longer than the wait for a node."""
    slow = "*=node0*) sleep 6.5 ;; *=node1*) sleep 6.6 ;; *=node2*) sleep 6.7 ;;"
    assert ask_nodes(slow.replace(" ;;", "; exit 0 ;;")) == []
