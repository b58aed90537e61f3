"""Tools that Muster waits for are slow, at the start and at a restart: no healthy run ends."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.testbeds import Cluster

pytestmark = pytest.mark.slow

HELD_S = 18  # longer than an agent may be silent
PROGRAM = [*ways.MANUAL, "--no-snapshot", "--max-restarts", "1", "--", "sh", "-c"]
FAILS_ONCE = "test $MUSTER_ATTEMPT = 1"
# Node 1's agent is lost, while node 0's agent waits for the next attempt.
LOSES_AGENT = (
    "test $MUSTER_ATTEMPT = 1 || { test $RANK = 0 || kill -9 $MUSTER_AGENT_PID; sleep 999; }"
)
SLOW = """#!/bin/sh
case "$*" in *{mark}*) echo "$$" >> {calls}; sleep {held_s} ;; esac
exec {tool} "$@"
"""


def slowed(cluster: Cluster, folder: Path, **marks: str) -> Cluster:
    """Return the cluster with these tools slow: each is slow if its mark is on the command line."""
    tools = folder / "slow"
    tools.mkdir()
    for name, mark in marks.items():
        found = shutil.which(name)
        assert found is not None
        calls = folder / f"{name}.calls"
        script = tools / name
        script.write_text(SLOW.format(mark=mark, calls=calls, held_s=HELD_S, tool=found))
        script.chmod(0o755)
    return replace(cluster, env={**cluster.env, "PATH": f"{tools}:{os.environ['PATH']}"})


def calls(folder: Path, name: str) -> int:
    return len((folder / f"{name}.calls").read_text().splitlines())


def test_slow_squeue_and_scontrol_end_no_run(cluster, tmp_path):
    slow = slowed(cluster, tmp_path, squeue="", scontrol="")
    flags = ["--logs-dir", str(tmp_path), *PROGRAM, FAILS_ONCE]
    code, out, err = ways.call(slow, ways.slurm(slow, 2, *flags))
    assert code == 0, out + err
    assert calls(tmp_path, "squeue") > 2


def test_slow_srun_of_a_second_agent_ends_no_run(cluster, tmp_path):
    """The second agent's srun is slow, while the first agent waits."""
    slow = slowed(cluster, tmp_path, srun="launch.in_job.task")
    flags = ["--logs-dir", str(tmp_path), *PROGRAM, LOSES_AGENT]
    code, out, err = ways.call(slow, ways.slurm(slow, 2, *flags))
    assert code == 0, out + err
    assert calls(tmp_path, "srun") == 2


@pytest.mark.needs("rsync")
def test_slow_ssh_and_rsync_at_a_restart_end_no_run(apart, tmp_path):
    """They are slow for the second agent's node, which has a disk of its own."""
    slow = slowed(apart, tmp_path, ssh="launch.agent", rsync="node1")
    where = ["--remote-dir", "muster", "--network", "10.10.1.0/24", "--logs-dir", str(tmp_path)]
    command = ways.ssh(slow, 2, *where, *PROGRAM, LOSES_AGENT)
    code, out, err = ways.call(slow, command, cwd=Path("/"))  # a folder that both nodes have
    assert code == 0, out + err
    assert calls(tmp_path, "ssh") == 3 and calls(tmp_path, "rsync") == 2
