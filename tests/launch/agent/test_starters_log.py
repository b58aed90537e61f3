"""A starter's log is read while it grows: no worker's exit code is lost."""

import subprocess
import sys
from dataclasses import replace

import pytest

from launch.agent.processes.workers import READ_BYTES, Workload
from launch.spec import Facts, LaunchSpec, NodeFacts, NodeSpec, Program, assignments_of

WORKERS = 2000
LINE = "E1 failed (exitcode: 3) local_rank: {} (pid: 7) of binary: python"
WRITES = f"""
import os
for rank in range({WORKERS}):
    os.write(1, b"{LINE}\\n".replace(b"{{}}", b"%d" % rank))
"""


@pytest.fixture
def workload(tmp_path):
    """A node's workload, without any process yet."""
    node = NodeFacts(NodeSpec("localhost", WORKERS), "node0", "python", "/", WORKERS)
    spec = LaunchSpec("run", tmp_path, Program(()))
    assignment = assignments_of(spec, Facts((node,), "127.0.0.1"), [])[0]
    return Workload(replace(assignment, commands=()), 1, {})


def test_what_is_logged_between_two_looks_is_not_lost(workload):
    """The starter writes through the position of the file that the agent reads."""
    with subprocess.Popen([sys.executable, "-c", WRITES], stdout=workload._log) as starter:
        while starter.poll() is None:
            workload._logged()
    assert workload._logged() == dict.fromkeys(range(WORKERS), 3)


def test_a_last_word_after_much_output_is_seen_at_once(workload):
    for text in ("x" * 79 + "\n") * (READ_BYTES // 40), LINE.format(1), "\n":
        workload._log.write(text.encode())
    workload._log.flush()
    assert workload._logged() == {1: 3}


def test_a_line_of_a_program_that_reads_like_the_starters_ends_nothing(workload):
    workload._log.write(f"{LINE.format(WORKERS)}\n{LINE.format(0)}\n".encode())
    workload._log.flush()
    assert workload._logged() == {0: 3}
