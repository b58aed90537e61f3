"""`launch/testbed.py` makes a cluster that is like one, and leaves nothing of it."""

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.testbeds import STATE, TESTBED, take_down, testbed
from tests.launch.submit import wait_until

NODES = ["node0", "node1", "node2", "node3"]
CORES = "import os; print(sorted(os.sched_getaffinity(0)))"
RESOLVE = "import socket; print(socket.gethostbyname(socket.gethostname()))"
# Takes what one connection brings, and prints how many bytes per second that was.
TAKE = """
import socket, time
with socket.create_server(("", 5000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    first, taken = time.monotonic(), 0
    while part := connection.recv(1 << 20):
        taken += len(part)
    print(taken / (time.monotonic() - first))
"""
GIVE = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 20))
"""
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
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout
    return {
        "links": sorted(line.split(":")[1].strip() for line in links.splitlines()),
        "namespaces": subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout,
        "mounts": Path("/proc/mounts").read_text(),
        "run": sorted(path.name for path in Path("/run").iterdir()),
        "hosts": Path("/etc/hosts").read_text(),
        "daemons": {pid for pid, name in processes().items() if name in DAEMONS},
    }


def test_nodes_have_names_and_know_each_other(cluster):
    assert cluster.hosts == NODES
    for node in NODES:
        assert cluster.exec(node, "hostname").stdout == f"{node}\n"
    for number, node in enumerate(NODES):
        assert cluster.exec("node0", "getent", "hosts", node).stdout.split() == [
            f"10.10.1.{number + 1}",
            node,
        ]
    assert cluster.exec("node2", sys.executable, "-c", RESOLVE).stdout == "10.10.1.3\n"
    assert set(cluster.exec("node2", "ls", "/sys/class/net").stdout.split()) == {"exp0", "lo"}


def test_exec_passes_on_where_one_is_and_how_it_ends(cluster, tmp_path):
    done = subprocess.run(
        [sys.executable, TESTBED, "exec", "node1", "--", "sh", "-c", "pwd; cat; exit 7"],
        cwd=tmp_path,
        input="given",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (7, f"{tmp_path}\ngiven")
    assert cluster.exec("node1", "no-such-command").returncode == 127
    unknown = cluster.exec("node9", "hostname")
    assert unknown.returncode == 2
    assert unknown.stderr == "error: exec node9: the testbed has node0, node1, node2, node3\n"


def test_ssh_goes_everywhere_and_checks_host_keys(cluster):
    for node in NODES:
        assert cluster.ssh(node, "hostname").stdout == f"{node}\n"
    onward = f"ssh -F {cluster.ssh_config} node3 hostname"
    assert cluster.ssh("node0", onward).stdout == "node3\n"
    assert cluster.ssh("10.10.1.2", "hostname").stdout == "node1\n"
    impostor = cluster.run(
        *("ssh", "-F", str(cluster.ssh_config), "-o", "HostKeyAlias=node1", "node0", "hostname")
    )
    assert impostor.returncode == 255 and "verification failed" in impostor.stderr


def test_slurm_runs_a_job_on_all_nodes(cluster, tmp_path):
    begun = time.monotonic()
    wrap = f"{sys.executable} -c '{CORES}'; srun hostname"
    job = cluster.run(
        *("sbatch", "--wait", "--nodes=4", f"--output={tmp_path}/out", f"--chdir={tmp_path}"),
        f"--wrap={wrap}",
    )
    assert job.returncode == 0, job.stderr
    first, *names = (tmp_path / "out").read_text().split("\n")
    assert sorted(filter(None, names)) == NODES
    assert len(json.loads(first)) < max(2, os.cpu_count() or 1)
    assert time.monotonic() - begun < 30


def test_two_jobs_share_a_node_and_short_is_short(cluster):
    assert cluster.run("srun", "--nodes=1", "--nodelist=node0", "true").returncode == 0
    holder = subprocess.Popen(
        ["srun", "--nodelist=node0", "sleep", "20"], env={**os.environ, **cluster.env}
    )
    try:
        beside = cluster.run("srun", "--immediate=10", "--nodelist=node0", "hostname")
        assert beside.stdout == "node0\n"
    finally:
        holder.terminate()
        holder.wait(timeout=30)
    limits = cluster.run("sinfo", "--noheader", "--format=%P %l %D").stdout.splitlines()
    assert limits == ["main* infinite 4", "short 2:00 2"]
    assert cluster.run("sacct").returncode != 0


def test_a_requeued_job_starts_again_soon(cluster, tmp_path):
    wrap = "--wrap=echo $SLURM_RESTART_COUNT >> starts; sleep 60"
    message = cluster.run("sbatch", "--parsable", f"--chdir={tmp_path}", "--output=out", wrap)
    job = message.stdout.strip()
    starts = tmp_path / "starts"
    try:
        assert wait_until(lambda: starts.exists() and starts.read_text(), 15)
        assert cluster.run("scontrol", "requeue", job).returncode == 0
        assert wait_until(lambda: starts.read_text() == "\n1\n", 40)
    finally:
        cluster.run("scancel", job)


def test_each_node_has_its_share_of_the_cores(cluster):
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // 4)
    expected = [[cores[(k * share + i) % len(cores)] for i in range(share)] for k in range(4)]
    code = f"'{CORES}'"
    for number, node in enumerate(NODES):
        want = f"{sorted(expected[number])}\n"
        assert cluster.exec(node, sys.executable, "-c", CORES).stdout == want
        assert cluster.ssh(node, sys.executable, "-c", code).stdout == want
        assert cluster.run("srun", f"--nodelist={node}", sys.executable, "-c", CORES).stdout == want


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


@pytest.mark.parametrize(
    "name", ["node1.slurmd", "node1.sshd", "node1.anchor", "munged", "slurmctld"]
)
def test_up_brings_back_what_died(cluster, name):
    assert testbed("status").returncode == 0
    os.kill(record(name), signal.SIGKILL)
    assert wait_until(lambda: testbed("status").returncode == 1, 10)
    healed = testbed("up", "--nodes", "4")
    assert healed.returncode == 0, healed.stderr
    assert "is back" in healed.stdout
    assert cluster.run("srun", "--nodelist=node1", "hostname").stdout == "node1\n"
    assert cluster.ssh("node1", "hostname").stdout == "node1\n"
    assert testbed("status").returncode == 0


def test_status_and_env_say_what_there_is(cluster):
    # A slurmctld that was killed forgets that a job has just ended.
    assert cluster.run("scancel", "--user=root").returncode == 0
    states = ["sinfo", "--noheader", "--format=%T"]
    assert wait_until(lambda: set(cluster.run(*states).stdout.split()) == {"idle"}, 20)
    status = testbed("status", env={"COLUMNS": "120"})
    assert status.returncode == 0
    for number, node in enumerate(NODES):
        (line,) = [line for line in status.stdout.splitlines() if line.split()[:1] == [node]]
        assert f"10.10.1.{number + 1}" in line and str(record(f"{node}.sshd")) in line
        assert "idle" in line and "unlimited" in line
    shell = 'eval "$($0 $1 env)" && cat $MUSTER_HOSTS && sinfo -h -o %D -p main'
    done = cluster.run("sh", "-c", shell, sys.executable, TESTBED)
    assert done.stdout.split() == [*NODES, "4"]


def test_with_a_control_network_the_name_is_on_the_slow_side(other_cluster):
    cluster = other_cluster("--nodes", "2", "--control-network")
    assert cluster.exec("node1", sys.executable, "-c", RESOLVE).stdout == "192.168.77.2\n"
    names = set(cluster.exec("node1", "ls", "/sys/class/net").stdout.split())
    assert names == {"ctl0", "exp0", "lo"}
    for address in ("10.10.1.1", "192.168.77.1"):
        for source in (["node1"], []):
            code = f"import socket; socket.create_connection(({address!r}, 22)).recv(4)"
            argv = [sys.executable, "-c", code]
            done = cluster.exec(source[0], *argv) if source else cluster.run(*argv)
            assert done.returncode == 0, done.stderr
    client = cluster.ssh("node1", "echo $SSH_CONNECTION").stdout.split()
    assert client[0] == "192.168.77.254" and client[2] == "192.168.77.2"
    assert cluster.run("srun", "--nodes=2", "hostname").returncode == 0


def test_a_private_home_is_bare_metal(other_cluster, tmp_path):
    venv = Path(sys.prefix)
    cluster = other_cluster("--nodes", "2", "--private-home", env={"MUSTER_BED_VENV": str(venv)})
    checkout = Path(TESTBED).parent.parent
    home = pwd.getpwuid(0).pw_dir
    (tmp_path / "shared").touch()
    assert cluster.ssh("node0", f"pwd; touch ~/mine; ls {tmp_path}/shared").returncode == 2
    assert cluster.ssh("node0", "ls").stdout.split() == ["mine", "muster"]
    assert cluster.ssh("node1", "ls").stdout.split() == ["muster"]
    assert cluster.exec("node0", "ls", private=True).stdout.split() == ["mine", "muster"]
    assert cluster.exec("node0", "pwd", private=True).stdout == f"{home}\n"
    assert not (Path(home) / "mine").exists()
    assert cluster.ssh("node0", f"ls {checkout}/launch").returncode == 2
    # Slurm's side has the shared file system.
    assert cluster.run("srun", "--nodes=2", "ls", str(checkout / "launch")).returncode == 0
    python = cluster.ssh("node1", "~/muster/.venv/bin/python -c 'import sys; print(sys.prefix)'")
    assert python.stdout == f"{home}/muster/.venv\n", python.stderr
    assert cluster.ssh("node1", "touch ~/muster/.venv/x").returncode == 1
    assert cluster.ssh("node0", f"ssh -F {cluster.ssh_config} node1 hostname").stdout == "node1\n"


def speed(cluster, server: str, client: str, address: str, mebibytes: int) -> float:
    """Bytes per second from `client` to `server`."""
    take = subprocess.Popen(
        [sys.executable, TESTBED, "exec", server, "--", sys.executable, "-c", TAKE],
        stdout=subprocess.PIPE,
        text=True,
    )
    with take:
        assert take.stdout is not None
        assert take.stdout.readline() == "ready\n"
        given = cluster.exec(client, sys.executable, "-c", GIVE, address, str(mebibytes))
        assert given.returncode == 0, given.stderr
        return float(take.stdout.readline())


def test_a_rate_limits_both_directions(other_cluster):
    cluster = other_cluster("--nodes", "2", "--rate", "100mbit")
    limit = 100e6 / 8
    for server, client, address in (
        ("node1", "node0", "10.10.1.2"),
        ("node0", "node1", "10.10.1.1"),
    ):
        assert limit / 2 < speed(cluster, server, client, address, 16) < limit * 2
    assert "100mbit" in testbed("status").stdout


@pytest.mark.parametrize("stage", ["network", "nodes", "slurm and sshd"])
@pytest.mark.parametrize("then", ["down", "up"])
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


def test_another_takes_the_place_of_one_that_is_dead(other_cluster):
    for path in (STATE / "pids").glob("*.json"):
        os.kill(record(path.stem), signal.SIGKILL)
    done = testbed("up", "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert "cleaning up" in done.stdout


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
    assert wait_until(lambda: "slurmstepd" in processes().values(), 20)
    pids = {record(path.stem) for path in (STATE / "pids").glob("*.json")}
    namespaces = list(Path("/run/netns").glob("muster-*"))
    inside = {path.stat().st_ino for path in namespaces}
    assert len(pids) == 2 + 3 * 4 and len(inside) == 3
    take_down()
    ssh.wait(timeout=10)
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


def test_down_needs_no_state_file(other_cluster):
    take_down()
    before = machine()
    assert testbed("up", "--nodes", "2").returncode == 0
    (STATE / "testbed.json").unlink()
    take_down()
    assert_same(machine(), before)


def assert_same(after: dict[str, object], before: dict[str, object]) -> None:
    for what, was in before.items():
        assert after[what] == was, what


def test_a_box_that_cannot_is_told_what_it_lacks(_fit_box):
    bare = testbed("up", env={"PATH": ""})
    assert bare.returncode == 1
    (line,) = bare.stderr.splitlines()
    wanted = "slurmd slurmctld slurm-client munge openssh-server iproute2"
    assert line.endswith(f": sudo apt-get install {wanted}")


def test_another_user_is_told_to_be_root(_fit_box):
    # A user without a way to this checkout cannot run it: the check alone is asked.
    code = (
        "import sys, os; sys.path.insert(0, sys.argv[1])\n"
        "from launch.virtual_cluster.commands import refuse_unfit_box\n"
        "os.setuid(65534)\nrefuse_unfit_box()\n"
    )
    argv = [sys.executable, "-c", code, str(Path(TESTBED).parent.parent)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 1 and "put sudo before it" in done.stderr


def test_a_node_does_not_end_the_bed_that_it_is_in(cluster):
    done = cluster.exec("node0", sys.executable, TESTBED, "down")
    assert done.returncode == 1
    assert done.stderr == "error: this is a node of the testbed; run the command on the box\n"
