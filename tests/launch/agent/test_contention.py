"""What keeps a worker from computing: read from real processes, and both kinds of cgroups."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from launch.agent.processes import contention
from launch.agent.processes.contention import Contention, causes, contention_of
from tests.launch.submit import wait_until

SPIN = "while True: pass"


def test_two_on_one_core_wait_for_it():
    core = min(os.sched_getaffinity(0))
    argv = ["taskset", "-c", str(core), sys.executable, "-c", SPIN]
    pair = [subprocess.Popen(argv) for _ in range(2)]

    def is_named() -> bool:
        found = causes(before, contention_of(pair[0].pid))
        return any(one.startswith("its threads wait ") and "for a core" in one for one in found)

    try:
        before = contention_of(pair[0].pid)
        assert wait_until(is_named)
    finally:
        for one in pair:
            one.kill()
            one.wait()


def test_one_that_sleeps_waits_for_no_core():
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        with process.stdin, process.stdout:
            process.stdin.write(b"it has begun\n")
            process.stdin.flush()
            process.stdout.readline()
            assert wait_until(lambda: psutil.Process(process.pid).status() == "sleeping")
            before = contention_of(process.pid)
            time.sleep(0.5)
            found = causes(before, contention_of(process.pid))
            assert not any("for a core" in one for one in found), found
    finally:
        process.kill()
        process.wait()
    assert contention_of(process.pid).core_s == 0.0  # it has gone


@pytest.mark.parametrize("version", [1, 2])
def test_limits_and_pressure_of_cgroups(tmp_path, monkeypatch, version):
    monkeypatch.setattr(contention, "PROC", tmp_path / "proc")
    monkeypatch.setattr(contention, "CGROUPS", tmp_path / "sys")
    own = tmp_path / "proc" / "7"
    own.mkdir(parents=True)
    (own / "status").write_text("Name:\tpython\nVmSwap:\t  200000 kB\n")
    if version == 1:
        (own / "cgroup").write_text("3:cpu,cpuacct:/job_7\n2:memory:/job_7\n")
        folder = tmp_path / "sys" / "cpu" / "job_7"
        text, pressure = "nr_throttled 3\nthrottled_time 2000000000\n", tmp_path / "proc"
        pressure = pressure / "pressure" / "memory"
    else:
        (own / "cgroup").write_text("0::/job_7\n")
        folder = tmp_path / "sys" / "job_7"
        text, pressure = "usage_usec 5\nthrottled_usec 2000000\n", folder / "memory.pressure"
    folder.mkdir(parents=True)
    pressure.parent.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(text)
    pressure.write_text("some avg10=0.00 avg60=0.00 total=5000000\nfull avg10=0.00 total=9\n")
    seen = contention_of(7)
    assert (seen.throttled_s, seen.memory_s, seen.swapped_bytes) == (2.0, 5.0, 204_800_000)
    found = causes(Contention(at=seen.at - 10.0), seen)
    assert found == [
        "its cgroup is held back 20% of the time by its processor limit",
        "memory is short: tasks stall 50% of the time for it",
        "205 MB of it are swapped out",
    ]
