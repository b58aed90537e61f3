"""A daemon is alive until its last thread has ended."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from launch.virtual_cluster import daemons, slurm_daemons
from launch.virtual_cluster.links import OUR_LINK, OUR_NAMESPACE
from tests.launch.submit import wait_until
from tests.written import write

# Only its first thread ends, as slurmd's may while other threads still close connections. The other
# thread stays until its standard input is closed.
FIRST_THREAD_ENDS = """
import ctypes, os, sys, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""
EXIT = {"x86_64": "60", "aarch64": "93"}[os.uname().machine]


@pytest.fixture
def ending(tmp_path, monkeypatch):
    """A daemon on record whose first thread has ended."""
    monkeypatch.setattr(daemons, "LOGS", tmp_path)
    monkeypatch.setattr(daemons, "RECORDS", tmp_path)
    monkeypatch.setattr(daemons, "DAEMON_REAPED_S", 0)
    command = [sys.executable, "-c", FIRST_THREAD_ENDS, EXIT]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    record = {"pid": process.pid, "started": daemons.started_at(process.pid)}
    write(tmp_path, {"slurmd.json": record})
    stat = Path(f"/proc/{process.pid}/stat")
    try:
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 60)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()


def test_daemon_whose_first_thread_ended_is_alive(ending):
    assert daemons.pid("slurmd") == ending.pid and daemons.recorded() == [ending.pid]
    assert ending.pid in daemons.inside([Path("/proc/self/ns/net")])


def test_end_returns_when_all_threads_have_ended(ending):
    daemons.end(daemons.recorded)
    assert daemons.pid("slurmd") is None
    assert len(list(Path(f"/proc/{ending.pid}/task").iterdir())) <= 1


def test_ending_daemon_is_waited_for(monkeypatch):
    monkeypatch.setattr(daemons, "DAEMON_REAPED_S", 0)
    stays = "trap '' TERM; echo; while :; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", stays], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            found = [[process.pid]]
            daemons.end(lambda: found.pop() if found else [])
            assert daemons.started_at(process.pid) is None
        finally:
            process.kill()


def test_ended_daemon_is_no_zombie(monkeypatch):
    """A daemon's parent is the machine's first process, which may reap it late."""
    monkeypatch.setattr(daemons, "DAEMON_REAPED_S", 300)
    process = subprocess.Popen(["sleep", "1000"])
    stat = Path(f"/proc/{process.pid}/stat")

    def reap():
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        time.sleep(0.3)
        process.wait()

    (parent := threading.Thread(target=reap)).start()
    try:
        daemons.end(lambda: {process.pid} if daemons.started_at(process.pid) else set())
        assert not stat.exists()
    finally:
        process.kill()
        parent.join()


def test_states_come_from_lines_of_sinfo():
    states = {"node0": "idle", "node1": "down*"}
    assert slurm_daemons.parsed("node0 idle\nnode0 idle\nnode1 down*\n") == states
    assert slurm_daemons.parsed("") == {}
    assert slurm_daemons.is_usable("mixed") and not slurm_daemons.is_usable("idle*")


def test_only_what_has_our_names_is_ours():
    assert OUR_NAMESPACE.fullmatch("muster-node12") and OUR_LINK.fullmatch("muster-exp0")
    for foreign in ("muster-nodes", "muster-node", "my-muster-node0", "docker0", "muster-exp0x"):
        assert not OUR_NAMESPACE.fullmatch(foreign) and not OUR_LINK.fullmatch(foreign)


def test_a_process_is_known_by_when_it_began(monkeypatch, tmp_path):
    monkeypatch.setattr(daemons, "RECORDS", tmp_path)
    own = {"pid": os.getpid(), "started": daemons.started_at(os.getpid())}
    reused = {**own, "started": 1}
    write(tmp_path, {"own.json": own, "reused.json": reused, "cut.json": '{"pid":'})
    assert daemons.pid("own") == os.getpid()
    assert daemons.pid("reused") is None and daemons.pid("cut") is None
    assert daemons.recorded() == [os.getpid()]
