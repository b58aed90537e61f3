"""`launch/testbed.py` up, status, env and down: what they do, print and leave behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster.testbeds import STATE, TESTBED, bring_up, take_down, testbed
from tests.commands import call
from tests.launch.submit import wait_until
from tests.train.workers import read_json

NODES = ["node0", "node1", "node2", "node3"]
# Daemons, and other processes that hold nodes or run on them.
OURS = {"slurmd", "slurmctld", "slurmstepd", "munged", "sshd", "nsenter", "sleep"}


def record(name: str) -> int:
    return int(read_json(STATE / "pids" / f"{name}.json")["pid"])


def processes() -> dict[int, str]:
    """Return the names of living processes, without zombies, which this machine's init may keep."""
    every = psutil.process_iter(["name", "status"])
    alive = (one for one in every if one.info["status"] != psutil.STATUS_ZOMBIE)
    return {one.pid: one.info["name"] for one in alive}


def machine() -> dict[str, object]:
    """Return everything that a testbed could leave behind."""
    links = call("ip", "-o", "link").stdout
    return {
        "links": sorted(line.split(":")[1].strip() for line in links.splitlines()),
        "namespaces": call("ip", "netns").stdout,
        "mounts": Path("/proc/mounts").read_text(),
        "run": sorted(path.name for path in Path("/run").iterdir()),
        "hosts": Path("/etc/hosts").read_text(),
        "processes": {pid for pid, name in processes().items() if name in OURS},
    }


@pytest.fixture
def nothing_left(_fit_box):
    """Start the test without a testbed; when it is over, the machine must be as before."""
    take_down()
    before = machine()
    yield
    after = machine()
    for what, was in before.items():
        assert after[what] == was, what


@pytest.mark.slow
def test_up_again_changes_nothing_and_another_is_refused(cluster):
    before = record("node0.slurmd")
    again = testbed("up", "--nodes", "4")
    assert again.returncode == 0
    assert "a testbed with --nodes 4 is already up" in again.stdout
    assert record("node0.slurmd") == before
    other = testbed("up", "--nodes", "2")
    assert other.returncode == 1
    problem, tip = other.stderr.splitlines()
    assert str(Path(TESTBED).parent.parent) in problem and tip.endswith(f"python {TESTBED} down")


@pytest.mark.slow
def test_up_names_what_died(other_cluster):
    other_cluster("--nodes", "2")
    wait_until(lambda: testbed("status").returncode == 0)
    for name in ("node1.slurmd", "node1.anchor", "slurmctld"):
        os.kill(record(name), signal.SIGKILL)
        wait_until(lambda name=name: name in testbed("up", "--nodes", "2").stderr)
        assert testbed("status").returncode == 1
    again = testbed("up", "--nodes", "2")
    assert again.returncode == 1 and again.stderr.endswith("testbed.py down, then up\n")


def test_status_and_env_say_what_there_is(cluster):
    # A slurmctld that was killed forgets that a job has just ended.
    assert cluster.run("scancel", "--user=root").returncode == 0
    states = ["sinfo", "--noheader", "--format=%T"]
    wait_until(lambda: set(cluster.run(*states).stdout.split()) == {"idle"})
    status = testbed("status", env={"COLUMNS": "120"})
    assert status.returncode == 0
    for number, node in enumerate(NODES):
        (line,) = [line for line in status.stdout.splitlines() if line.split()[:1] == [node]]
        assert f"10.10.1.{number + 1}" in line and str(record(f"{node}.sshd")) in line
        assert "idle" in line and "unlimited" in line
    shell = 'eval "$($0 $1 env)" && cat $MUSTER_HOSTS && sinfo -h -o %D -p main'
    done = cluster.run("sh", "-c", shell, sys.executable, TESTBED)
    assert done.stdout.split() == [*NODES, "4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "then"), [("network", "down"), ("nodes", "down"), ("slurm and sshd", "up")]
)
@pytest.mark.usefixtures("nothing_left")
def test_testbed_that_was_cut_short_is_cleaned_up(stage, then):
    cut = subprocess.Popen([sys.executable, TESTBED, "up"], stdout=subprocess.PIPE, text=True)
    with cut:
        while cut.stdout.readline() != f"{stage}\n":
            assert cut.poll() is None
        cut.kill()
    done = testbed(then)
    assert done.returncode == 0, done.stderr
    if then == "up":
        assert "cleaning up" in done.stdout
        take_down()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_testbed_daemon_that_fails_to_start_leaves_only_its_log():
    with socket.create_server(("0.0.0.0", 16817)):
        done = testbed("up")
    assert done.returncode == 1
    assert done.stderr.startswith("error: slurmctld ended early; its log ends with:\n")
    assert "Address already in use" in done.stderr


@pytest.mark.usefixtures("nothing_left")
def test_down_leaves_nothing(tmp_path):
    flags = ["--nodes", "3", "--control-network", "--private-home", "--rate", "1gbit"]
    cluster = bring_up(*flags, env={"MUSTER_BED_VENV": sys.prefix})
    # One process ignores SIGTERM, and another has left its session.
    stubborn = "trap '' TERM; setsid sleep 1000 & while :; do sleep 1; done"
    assert "1gbit" in testbed("status").stdout
    batch = ["sbatch", "--output=/dev/null", f"--chdir={tmp_path}", f"--wrap={stubborn}"]
    assert cluster.run(*batch).returncode == 0
    ssh = subprocess.Popen(["ssh", "-F", str(cluster.ssh_config), "node1", "sleep", "1000"])
    wait_until(lambda: "slurmstepd" in processes().values())
    take_down()
    ssh.wait(timeout=300)
    again = testbed("down")
    assert (again.returncode, again.stdout) == (0, "no testbed is up\n")
    assert testbed("status").returncode == 1
    assert testbed("env").stdout == ""


def test_a_box_that_cannot_is_told_what_it_lacks(_fit_box):
    bare = testbed("up", env={"PATH": ""})
    assert bare.returncode == 1
    _, tip = bare.stderr.splitlines()
    wanted = "slurmd slurmctld slurm-client munge openssh-server iproute2"
    assert tip.startswith("tip: ") and tip.endswith(f"sudo apt-get install {wanted}")
