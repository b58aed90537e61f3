"""The kernel's own count of processes killed for lack of memory, in both cgroup versions."""

import pytest

from launch.agent.agent import oom_kills
from tests.written import write

CGROUPS = [
    ("0::/job_7/step_0", "job_7/step_0/memory.events", "low 0\noom 2\noom_kill 2\n"),
    ("4:memory:/job_7\n0::/", "memory/job_7/memory.oom_control", "under_oom 0\noom_kill 2\n"),
    ("2:cpu,memory:/job_7", "memory/job_7/memory.oom_control", "oom_kill 2\n"),
]


@pytest.mark.parametrize(("own", "file", "text"), CGROUPS)
def test_oom_kills_of_the_own_cgroup_are_counted(tmp_path, own, file, text):
    write(tmp_path, {"own": f"{own}\n", f"cgroup/{file}": text})
    assert oom_kills(tmp_path / "cgroup", tmp_path / "own") == 2


def test_unreadable_cgroup_counts_no_oom_kill(tmp_path):
    assert oom_kills(tmp_path, tmp_path / "none") == 0
    (tmp_path / "own").write_text("0::/nowhere\n")
    assert oom_kills(tmp_path, tmp_path / "own") == 0
    assert oom_kills() >= 0
