"""Workers get as many files as their node allows, and what is too low for them is named."""

import os
import resource
import sys

import pytest

from launch.agent.inherited import raise_limits
from launch.nodes.resources import limits, too_low
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.written import write

MB = 1 << 20
ENOUGH = {"files": 4096, "processes": 4096, "shared_bytes": 2048 * MB}
ENOUGH |= {"free_shared_bytes": 2048 * MB}
TOO_LOW = [
    ({}, 4, ""),
    (dict.fromkeys(ENOUGH), 4, ""),  # as on macOS
    ({"files": 1024}, 1, "a process may open 1024 files at most, which data loaders may exceed; "),
    ({"processes": 1000}, 1, "1000 processes and threads at most; raise nproc in "),
    ({"processes": 2000}, 4, ""),
    ({"processes": 2000}, 8, "2000 processes and threads at most; "),
    ({"free_shared_bytes": 64 * MB, "shared_bytes": 64 * MB}, 1, "/dev/shm has 67 of 67 MB free: "),
    ({"free_shared_bytes": 300 * MB}, 1, ""),
    ({"free_shared_bytes": 300 * MB}, 2, "/dev/shm has 315 of 2147 MB free: loader workers pass "),
]


@pytest.mark.parametrize(("change", "workers", "line"), TOO_LOW)
def test_limit_too_low_for_the_workers_is_named(change, workers, line):
    found = list(too_low({**ENOUGH, **change}, workers))
    assert len(found) == bool(line) and "".join(found).startswith(line)
    assert all(found.partition("; ")[2] for found in found)


RAISES = """
import resource, sys
from launch.agent.inherited import raise_limits
for kind, limits in zip((resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC), ((300, 900), (700, 800))):
    resource.setrlimit(kind, limits)
raise_limits()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), *resource.getrlimit(resource.RLIMIT_NPROC))
"""


def test_soft_limits_are_raised_to_hard_ones():
    done = call(sys.executable, "-c", RAISES, cwd=CHECKOUT)
    assert done.stdout == "900 900 800 800\n", done.stderr


def test_a_hard_limit_that_is_none_is_not_taken_for_files(monkeypatch):
    """Some programs close each file that they might have open, one by one."""
    set_to = {}
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1024, -1))
    monkeypatch.setattr("resource.setrlimit", set_to.__setitem__)
    raise_limits()
    assert set_to == {resource.RLIMIT_NOFILE: (1 << 20, -1), resource.RLIMIT_NPROC: (-1, -1)}


GROUPS = [
    ("0::/user/me\n", {"user/me/pids.max": "max\n", "user/pids.max": "500\n"}, 500),
    ("0::/\n", {"pids.max": "700\n"}, 700),  # as in a container
    ("4:memory:/a\n8:pids:/a\n", {"pids/a/pids.max": "600", "memory/a/pids.max": "1"}, 600),
    ("0::/../up\n", {}, None),
    ("", {}, None),
]


@pytest.mark.parametrize(("own", "files", "most"), GROUPS)
def test_processes_are_limited_by_any_group_above(monkeypatch, tmp_path, own, files, most):
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # for whom there is no other limit
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    write(tmp_path, {"proc/self/cgroup": own, **groups})
    assert limits(tmp_path)["processes"] == most
