"""Nodes without a shared disk get a run's data through sshd; nodes of a job copy the data."""

import shlex
import shutil
from pathlib import Path

import pytest

from launch.nodes import node_data
from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.commands import cause_in
from tests.written import write

# Each rank prints where its data are, and what is in them.
READS = """
import os
from pathlib import Path

place = Path(os.environ["MUSTER_DATA"])
print(place, sorted(str(path.relative_to(place)) for path in place.rglob("*.txt")), flush=True)
"""


@pytest.fixture
def reader(tmp_path) -> Path:
    return write(tmp_path / "project", {"reads.py": READS})


@pytest.fixture
def data(tmp_path) -> Path:
    return write(
        tmp_path / "data", {"a.txt": "first", "deep/b.txt": "last", "large": b"x" * 100_000}
    )


def send(
    cluster: Cluster, reader: Path, sending: str, *more: str, nodes: int = 2
) -> tuple[int, str, str]:
    """Run a program over ssh that reads the data that were sent."""
    own = ["--logs-dir", str(reader.parent / "runs"), "--workers", "manual", "--send", sending]
    return ways.call(cluster, ways.ssh(cluster, nodes, *own, *more, "--", "reads.py"), cwd=reader)


def outputs(reader: Path) -> str:
    """Return what all ranks of all runs have printed."""
    paths = (reader.parent / "runs").glob("*/workers/rank_*.out")
    return "".join(path.read_text() for path in paths)


def on_node(cluster: Cluster, node: str, line: str) -> str:
    """Run a line in a shell where a node's login sessions run; return what it prints."""
    done = cluster.exec(node, "sh", "-c", line, private=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def home() -> str:
    return str(Path.home())


@pytest.mark.slow
def test_nodes_get_the_data_once_and_jobs_clean_knows_them(apart, reader, data):
    code, _, err = send(apart, reader, f"{data}:~/set")
    assert code == 0, err
    place = f"{home()}/set"
    assert f"sending {data} (100.0 kB) to 2 nodes" in err and f"data: {place} (" in err
    assert outputs(reader).count(f"{place} ['a.txt', 'deep/b.txt']\n") == 2
    for node in ("node0", "node1"):
        assert on_node(apart, node, f"ls -A {place}").split() == [
            ".muster-data",
            "a.txt",
            "deep",
            "large",
        ]
        sent = on_node(apart, node, f"cd {place} && cat a.txt deep/b.txt large")
        assert sent == f"firstlast{'x' * 100_000}"
    code, _, err = send(apart, reader, f"{data}:~/set")
    assert code == 0 and f"data: {place} (already complete" in err, err
    flags = ["--hosts", "node[0-1]", "--ssh-config", str(apart.ssh_config)]
    shown = ways.jobs(apart, "clean", *flags)
    assert shown.count("data from --send") == 2 and f"node1: {place}" in shown, shown
    ways.jobs(apart, "clean", *flags, "--remove")
    assert on_node(apart, "node0", f"ls -d {place} || true") == ""


@pytest.mark.slow
def test_a_node_without_room_is_named_and_nothing_stays_there(apart, reader, tmp_path):
    many = write(tmp_path / "many", {f"{number}.txt": "x" for number in range(2_000)})
    on_node(apart, "node1", "mkdir -p ~/full && mount -n -t tmpfs -o size=2m tmpfs ~/full")
    try:
        code, _, err = send(apart, reader, f"{many}:~/full/set")
        assert code == 1
        assert "No space left on device" in cause_in(err) and "node1: " in cause_in(err)
        assert on_node(apart, "node1", "ls -A ~/full") == ""
        assert on_node(apart, "node0", "ls -A ~/full") in ("", ".set.muster-sending\n")
    finally:
        on_node(apart, "node1", "umount ~/full")
        for node in ("node0", "node1"):
            on_node(apart, node, "rm -rf ~/full")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["slurm", "sbatch"])
def test_nodes_of_a_job_copy_data_to_their_own_disks(cluster, reader, data, tmp_path, way):
    """The testbed's nodes share a disk, so each gets a folder named after its host."""
    place = f"{tmp_path}/$SLURMD_NODENAME"
    runs = tmp_path / "runs"
    runs.mkdir()  # sbatch does not make it
    flags = ["--logs-dir", str(runs), "--workers", "manual"]
    flags += ["--send", f"{data}:{place}", "--", str(reader / "reads.py")]
    code, out, err = ways.call(cluster, ways.WAYS[way](cluster, 2, *flags), cwd=reader)
    assert code == 0, (out, err, [path.read_text() for path in runs.glob("job.out")])
    places = sorted(tmp_path.glob("node*"))  # Slurm chooses the two nodes
    for copied in places:
        assert (copied / "deep" / "b.txt").read_text() == "last"
        assert (copied / node_data.DATA_MARK).exists()
    lines = [f"{copied} ['a.txt', 'deep/b.txt']" for copied in places]
    assert sorted(outputs(reader).splitlines()) == lines and len(lines) == 2


@pytest.mark.slow
def test_refused_archive_is_unpacked_by_the_prologue_of_its_message(
    cluster, reader, data, tmp_path
):
    archive = shutil.make_archive(str(tmp_path / "set"), "gztar", data)
    own = ["--logs-dir", str(tmp_path / "runs"), "--workers", "manual"]
    sending = ["--send", f"{archive}:{tmp_path}/of/$SLURMD_NODENAME"]
    program = ["--", "reads.py"]
    argv = ways.slurm(cluster, 2, *own, *sending, *program)
    code, out, err = ways.call(cluster, argv, cwd=reader)
    assert code == 2 and "set.tar.gz is an archive" in out + err
    line = (out + err).partition("in FILE: ")[2].splitlines()[0]
    (tmp_path / "unpack.sh").write_text(line)
    own += ["--prologue", str(tmp_path / "unpack.sh")]
    code, out, err = ways.call(cluster, ways.slurm(cluster, 2, *own, *program), cwd=reader)
    assert code == 0, out + err
    places = sorted((tmp_path / "of").iterdir())  # Slurm chooses the two nodes
    lines = [f"{unpacked} ['a.txt', 'deep/b.txt']" for unpacked in places]
    assert sorted(outputs(reader).splitlines()) == lines and len(lines) == 2


@pytest.mark.slow
def test_node_without_rsync_is_named_before_anything_starts(apart, reader, data, tmp_path):
    cover = "mount -n --bind /dev/null"
    on_node(apart, "node1", f"for rsync in $(echo /usr/bin/rsync); do {cover} $rsync; done")
    try:
        code, _, err = send(apart, reader, f"{data}:~/set")
    finally:
        on_node(apart, "node1", "umount /usr/bin/rsync")
    assert code == 2 and err.splitlines()[-1].startswith("error: node1: rsync is not installed"), (
        err
    )
    assert not [*(tmp_path / "runs").glob("*")]


@pytest.mark.slow
def test_job_node_without_room_for_data_is_named_and_cleaned(cluster, reader, tmp_path):
    many = write(tmp_path / "many", {f"{number}.txt": "x" for number in range(2_000)})
    full = tmp_path / "node1"
    full.mkdir()
    runs = ["--logs-dir", str(tmp_path / "runs"), "--workers", "manual"]
    sending = f"{many}:{tmp_path}/$SLURMD_NODENAME/set"
    cluster.exec("node1", "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(full))
    try:
        runs += ["--slurm", "nodelist=node0,node1", "--send", sending]
        argv = ways.WAYS["slurm"](cluster, 2, *runs, "--", "reads.py")
        code, out, err = ways.call(cluster, argv, cwd=reader)
        assert code == 1, out + err
        assert "node1: " in out + err and "No space left on device" in out + err
        assert cluster.exec("node1", "ls", "-A", str(full)).stdout == ""
        assert outputs(reader) == ""
    finally:
        cluster.exec("node1", "umount", str(full))


@pytest.mark.slow
def test_data_dir_that_nodes_lack_is_refused_with_send_flag(apart, data, tmp_path):
    flags = ["--task", "rte", "--data-dir", str(data), "--logs-dir", str(tmp_path / "runs")]
    code, _, err = ways.call(apart, ways.ssh(apart, 2, *flags))
    *_, problem0, tip0, problem1, tip1 = err.splitlines()
    assert code == 2 and tip0 == tip1 == f"tip: add --send {shlex.quote(str(data))}", err
    for index, problem in enumerate((problem0, problem1)):
        assert problem.startswith(f"error: node{index}: --data-dir {data} "), err
