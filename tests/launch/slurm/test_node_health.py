"""The nodes of a job that are gone are told from those that answer."""

import pytest

from launch.slurm.node_health import answers


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What the nodes of a job answer whose srun is a script with these cases."""
    monkeypatch.setattr("launch.slurm.node_health.PATIENCE_S", 3.0)

    def ask(cases: str) -> dict[str, bool]:
        (tmp_path / "srun").write_text(f'#!/bin/sh\ncase "$*" in {cases} esac; exit 1\n')
        (tmp_path / "srun").chmod(0o755)
        return answers(["node0", "node1", "node2"], {"PATH": f"{tmp_path}:/usr/bin:/bin"})

    return ask


def test_all_nodes_answer(asked):
    assert asked("*) exit 0 ;;") == dict.fromkeys(("node0", "node1", "node2"), True)


@pytest.mark.parametrize("gone", ["exec sleep 1000", "exit 1"])
def test_a_node_that_does_not_answer_is_left_out(asked, gone):
    for name in ("node0", "node1"):
        answer = asked(f"*={name}*) {gone} ;; *) exit 0 ;;")
        assert answer == {**dict.fromkeys(("node0", "node1", "node2"), True), name: False}


def test_nodes_are_not_gone_because_the_controller_is_busy(asked):
    """It takes one request after the other, each for longer than a node is waited for."""
    slow = "*=node0*) sleep 3.5 ;; *=node1*) sleep 4.5 ;; *=node2*) sleep 5.5 ;;"
    answer = asked(slow.replace(" ;;", "; exit 0 ;;"))
    assert answer == dict.fromkeys(("node0", "node1", "node2"), True)
