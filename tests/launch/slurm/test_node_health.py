"""The nodes of a job that are gone are told from those that answer."""

import pytest

from launch.slurm.node_health import answers

# A step on all nodes while node1 is gone: the others begin, and nobody ends.
ALL = "--nodes=3"
BEGIN = "echo node0; echo node2; exec sleep 60"
# The same, asked one by one.
EACH = "*=node1*) exec sleep 60 ;; *=node[02]*) exit 0 ;;"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What the nodes of a job answer whose srun is a script with these cases."""
    monkeypatch.setattr("launch.slurm.node_health.PATIENCE_S", 1.0)

    def ask(cases: str) -> tuple[dict[str, bool], int]:
        log = tmp_path / "steps"
        scripts = {
            "srun": f'echo >> {log}; case "$*" in {cases} esac; exit 1',
        }
        for name, text in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        answer = answers(["node0", "node1", "node2"], {"PATH": f"{tmp_path}:/usr/bin:/bin"})
        return answer, log.read_text().count("\n")

    return ask


def test_one_step_asks_all_nodes(asked):
    everyone = f"*{ALL}*) echo node2; echo node0; echo node1; exit 0 ;;"
    assert asked(everyone) == (dict.fromkeys(("node0", "node1", "node2"), True), 1)


@pytest.mark.parametrize("at_once", [BEGIN, "exit 1"])
def test_a_node_that_does_not_answer_is_left_out(asked, at_once):
    answer, _ = asked(f"*{ALL}*) {at_once} ;; {EACH}")
    assert answer == {"node0": True, "node1": False, "node2": True}


def test_nodes_are_not_gone_because_the_controller_is_busy(asked):
    """It takes one request after the other, each for longer than a node is waited for."""
    slow = "*=node0*) sleep 1.5 ;; *=node1*) sleep 2.2 ;; *=node2*) sleep 2.9 ;; *) sleep 60 ;;"
    answer, _ = asked(slow.replace(" ;;", "; exit 0 ;;"))
    assert answer == dict.fromkeys(("node0", "node1", "node2"), True)
