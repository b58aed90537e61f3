"""A step takes place on the nodes of a job that answer, whatever their number of tasks."""

import pytest

from launch.slurm.job import Allocation
from launch.slurm.survivors import answers, srun_options

ALLOCATION = Allocation(
    job_id="7", name="7", attempt=0, num_nodes=3, nodelist="node[0-2]", gpus_on_node=0
)


@pytest.fixture
def slurm(tmp_path):
    """Slurm's commands, of a job in which node1 is gone for good."""
    scripts = {
        "scontrol": "echo node0; echo node1; echo node2",
        "srun": 'case "$*" in *=node1*) exec sleep 60 ;; *=node[02]*) exit 0 ;; esac; exit 1',
    }
    for name, text in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_a_node_that_does_not_answer_is_left_out(slurm, monkeypatch):
    monkeypatch.setenv("PATH", slurm["PATH"])
    monkeypatch.setattr("launch.slurm.survivors.PATIENCE_S", 1.0)
    answer = answers(ALLOCATION, slurm)
    assert answer == {"node0": True, "node1": False, "node2": True}
    assert srun_options(answer, [2, 2, 1]) == [
        "--overlap",
        "--nodes=2",
        "--ntasks=3",
        "--nodelist=node0,node2",
    ]
