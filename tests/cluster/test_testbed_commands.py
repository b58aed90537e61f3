"""`launch/testbed.py` up, status, env and down: what they do, say and leave."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.testbeds import STATE, TESTBED, take_down, testbed
from tests.commands import call
from tests.launch.submit import wait_until

NODES = ["node0", "node1", "node2", "node3"]
DAEMONS = {"slurmd", "slurmctld", "slurmstepd", "munged", "sshd", "nsenter"}


def record(name: str) -> int:
    return int(json.loads((STATE / "pids" / f"{name}.json").read_text())["pid"])


def processes() -> dict[int, str]:
    """Name of each process that is alive: a zombie is not, and this machine's init may keep it."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = path.read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        if after.split()[0] != "Z":
            found[int(path.parent.name)] = before.partition("(")[2]
    return found


def machine() -> dict[str, object]:
    """What a testbed could leave behind."""
    links = call("ip", "-o", "link").stdout
    return {
        "links": sorted(line.split(":")[1].strip() for line in links.splitlines()),
        "namespaces": call("ip", "netns").stdout,
        "mounts": Path("/proc/mounts").read_text(),
        "run": sorted(path.name for path in Path("/run").iterdir()),
        "hosts": Path("/etc/hosts").read_text(),
        "daemons": {pid for pid, name in processes().items() if name in DAEMONS},
    }


def test_up_again_changes_nothing_and_another_is_refused(cluster):
    before = record("node0.slurmd")
    again = testbed("up", "--nodes", "4")
    assert again.returncode == 0
    assert "a testbed with --nodes 4 is up already" in again.stdout
    assert record("node0.slurmd") == before
    other = testbed("up", "--nodes", "2")
    assert other.returncode == 1
    (line,) = other.stderr.splitlines()
    assert str(Path(TESTBED).parent.parent) in line and line.endswith(f"python {TESTBED} down")


def test_up_names_what_died(other_cluster):
    other_cluster("--nodes", "2")
    assert wait_until(lambda: testbed("status").returncode == 0)
    for name in ("node1.slurmd", "node1.anchor", "slurmctld"):
        os.kill(record(name), signal.SIGKILL)
        assert wait_until(lambda name=name: name in testbed("up", "--nodes", "2").stderr)
        assert testbed("status").returncode == 1
    again = testbed("up", "--nodes", "2")
    assert again.returncode == 1 and again.stderr.endswith("testbed.py down, then up\n")


def test_status_and_env_say_what_there_is(cluster):
    # A slurmctld that was killed forgets that a job has just ended.
    assert cluster.run("scancel", "--user=root").returncode == 0
    states = ["sinfo", "--noheader", "--format=%T"]
    assert wait_until(lambda: set(cluster.run(*states).stdout.split()) == {"idle"})
    status = testbed("status", env={"COLUMNS": "120"})
    assert status.returncode == 0
    for number, node in enumerate(NODES):
        (line,) = [line for line in status.stdout.splitlines() if line.split()[:1] == [node]]
        assert f"10.10.1.{number + 1}" in line and str(record(f"{node}.sshd")) in line
        assert "idle" in line and "unlimited" in line
    shell = 'eval "$($0 $1 env)" && cat $MUSTER_HOSTS && sinfo -h -o %D -p main'
    done = cluster.run("sh", "-c", shell, sys.executable, TESTBED)
    assert done.stdout.split() == [*NODES, "4"]


@pytest.mark.parametrize(
    ("stage", "then"), [("network", "down"), ("nodes", "down"), ("slurm and sshd", "up")]
)
def test_what_is_cut_short_can_be_cleaned_up(other_cluster, stage, then):
    take_down()
    before = machine()
    cut = subprocess.Popen([sys.executable, TESTBED, "up"], stdout=subprocess.PIPE, text=True)
    with cut:
        assert cut.stdout is not None
        while cut.stdout.readline() != f"{stage}\n":
            pass
        time.sleep(0.05)
        cut.kill()
    done = testbed(then)
    assert done.returncode == 0, done.stderr
    if then == "up":
        assert "cleaning up" in done.stdout
        take_down()
    assert_same(machine(), before)


def test_a_daemon_that_does_not_come_up_leaves_nothing_but_its_log(other_cluster):
    take_down()
    before = machine()
    with socket.create_server(("0.0.0.0", 16817)):
        done = testbed("up")
    assert done.returncode == 1
    assert done.stderr.startswith("error: slurmctld did not stay up; its log ends with:\n")
    assert "Address already in use" in done.stderr
    assert_same(machine(), before)


def test_down_leaves_nothing(other_cluster, tmp_path):
    take_down()
    before = machine()
    env = {"MUSTER_BED_VENV": sys.prefix}
    flags = ["--nodes", "3", "--control-network", "--private-home", "--rate", "1gbit"]
    assert testbed("up", *flags, env=env).returncode == 0
    assert machine() != before
    slurm = {**os.environ, "SLURM_CONF": str(STATE / "slurm" / "slurm.conf")}
    # One that ignores SIGTERM, and one that has left its session.
    stubborn = "trap '' TERM; setsid sleep 1000 & while :; do sleep 1; done"
    batch = ["sbatch", "--output=/dev/null", f"--chdir={tmp_path}", f"--wrap={stubborn}"]
    subprocess.run(batch, env=slurm, check=True, capture_output=True)
    ssh = subprocess.Popen(["ssh", "-F", str(STATE / "ssh_config"), "node1", "sleep", "1000"])
    assert wait_until(lambda: "slurmstepd" in processes().values())
    pids = {record(path.stem) for path in (STATE / "pids").glob("*.json")}
    namespaces = list(Path("/run/netns").glob("muster-*"))
    inside = {path.stat().st_ino for path in namespaces}
    assert len(pids) == 2 + 3 * 4 and len(inside) == 3
    take_down()
    ssh.wait(timeout=300)
    assert not pids & set(processes())
    for pid in processes():
        try:
            assert Path(f"/proc/{pid}/ns/net").stat().st_ino not in inside
        except OSError:
            continue
    assert_same(machine(), before)
    again = testbed("down")
    assert (again.returncode, again.stdout) == (0, "nothing is up\n")
    assert testbed("status").returncode == 1
    assert testbed("env").stdout == ""


def assert_same(after: dict[str, object], before: dict[str, object]) -> None:
    for what, was in before.items():
        assert after[what] == was, what


def test_a_box_that_cannot_is_told_what_it_lacks(_fit_box):
    bare = testbed("up", env={"PATH": ""})
    assert bare.returncode == 1
    (line,) = bare.stderr.splitlines()
    wanted = "slurmd slurmctld slurm-client munge openssh-server iproute2"
    assert line.endswith(f": sudo apt-get install {wanted}")
