"""The code is sent only where no file can be lost: the real rsync, to hosts that are folders."""

import os
import re
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from configs.settings.launch import Sending as DataSending
from configs.settings.remote import SshConfig
from launch.launchers.ssh import Ssh
from launch.leading.leader import lead
from launch.nodes import node_data, node_facts
from launch.runs import run_record
from launch.spec import Facts, LaunchSpec
from launch.ssh import transfer
from muster.errors import MusterError
from tests.launch.pretended import PROGRAM, Pretended
from tests.launch.submit import alive, wait_until
from tests.written import executable, write

MESSAGE = (
    "a: {folder} contains configs, data, train, which Muster did not put there; sending the code"
    " would overwrite and delete files; choose an empty or a new folder with --remote-dir, or,"
    " if all of it may be deleted (a copy from an earlier version): "
    "ssh a touch {folder}/.muster-sent"
)


def files(folder: str | Path) -> list[str]:
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


SENT = [".muster-sent", "Makefile", "configs/here.yaml"]
SENT += [f"{package}/here.py" for package in ("launch", "muster", "train")]


def test_sent_checkout_is_complete_and_loses_deleted_files(hosts, checkout):
    nodes = hosts("a", "b")
    assert transfer.send_checkout(nodes, SshConfig()) == nodes
    assert [files(node.repository) for node in nodes] == [SENT, SENT]
    for package in ("muster", "train"):
        (checkout / package / "here.py").unlink()
    transfer.send_checkout(nodes, SshConfig())
    assert files(nodes[0].repository) == SENT[:-2]


def test_nobody_else_may_write_the_code_on_a_node(hosts, checkout, monkeypatch):
    (node,) = hosts("a")
    before = os.umask(0o002)
    try:
        (write(checkout, {"launch/more/new.py": ""}) / "launch" / "more").chmod(0o775)
        transfer.send_checkout([node], SshConfig())
    finally:
        os.umask(before)
    root = Path(node.repository)
    assert [path for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o022] == []


def test_files_of_somebody_else_are_not_touched(hosts):
    """Earlier, they were deleted below train/, configs/ and launch/, and overwritten elsewhere."""
    nodes = hosts("a", "b")
    own = dict.fromkeys(("train/my_model.py", "configs/my.yaml", "data"), "mine")
    folder = write(Path(nodes[0].repository), own)
    before = files(folder)
    with pytest.raises(MusterError) as refused:
        transfer.send_checkout(nodes, SshConfig())
    assert str(refused.value) == MESSAGE.format(folder=folder)
    assert files(folder) == before
    assert files(nodes[1].repository) == [".muster-sent"]  # nothing is sent where one is refused
    # and the command in the message makes it possible
    way_on = str(refused.value).rpartition("): ")[2]
    subprocess.run(["bash", "-c", way_on], check=True)
    transfer.send_checkout(nodes, SshConfig())
    assert files(folder) == [*SENT[:2], "configs/here.yaml", "data", *SENT[3:]]


def test_an_environment_may_be_there_before_the_code(hosts):
    (node,) = hosts("a")
    Path(node.repository, ".venv", "bin").mkdir(parents=True)
    transfer.send_checkout([node], SshConfig())
    assert files(node.repository) == SENT


def test_a_home_that_several_nodes_share_is_written_once(hosts):
    nodes = hosts("a", "b", c="a", d="b")
    firsts = transfer.send_checkout(nodes, SshConfig())
    assert [node.name for node in firsts] == ["a", "b"]
    assert files(nodes[2].repository) == SENT


def test_machines_of_one_image_have_equal_folders_and_each_is_written(hosts):
    nodes = hosts("a", "b")
    for node in nodes:
        write(Path(node.repository), {node_facts.MARKER: "the same\n"})
    assert transfer.send_checkout(nodes, SshConfig()) == nodes
    assert files(nodes[1].repository) == SENT


def test_a_folder_that_cannot_be_made_is_named(hosts):
    (node,) = hosts("a")
    Path(node.repository).write_text("a file")
    with pytest.raises(MusterError, match=re.escape(f"a: cannot write into {node.repository}: ")):
        transfer.send_checkout([node], SshConfig())


def test_ignored_file_is_neither_sent_nor_removed(hosts, checkout):
    (node,) = hosts("a")
    names = ("logs/run", "train/a.out", ".git", "train/__pycache__/a.pyc")
    write(checkout, {".gitignore": "/logs/*\n*.out\n", **dict.fromkeys(names, "here")})
    transfer.send_checkout([node], SshConfig())
    sent = [".gitignore", *SENT]
    assert files(node.repository) == sent and Path(node.repository, "logs").is_dir()
    theirs = ["launch/__pycache__/b.pyc", "logs/other", "mine"]
    write(Path(node.repository), dict.fromkeys(theirs, "there"))
    transfer.send_checkout([node], SshConfig())
    assert files(node.repository) == sorted([*sent, *theirs])


# Takes rsync's place, as on a very slow link: it records that it has started, and does not end.
STUCK = """#!/bin/bash
touch {folder}/sending
exec tail -f {folder}/sending
"""


class Sending(Pretended):
    """A launcher that sends the code to `nodes` as `--launcher ssh` does."""

    def __init__(self, nodes):
        super().__init__("fails")
        self._nodes = tuple(nodes)

    launch = Ssh.launch
    _start_agents = Ssh._start_agents
    _ssh = SshConfig()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_code_transfer_ends_run_and_is_recorded(hosts, tmp_path, number):
    nodes = hosts("node0", "node1", "node2")
    executable(tmp_path / "bin" / "rsync", STUCK.format(folder=tmp_path))
    run = LaunchSpec("run", tmp_path / "run", PROGRAM)
    run.run_dir.mkdir()

    def interrupt():
        wait_until((tmp_path / "sending").exists)
        # to this thread, so that the main thread is not woken, as if it was about to wait
        signal.pthread_kill(threading.get_ident(), number)

    user = threading.Thread(target=interrupt)
    user.start()
    code = lead(Sending(nodes), run, Facts(tuple(nodes), "node0"))
    user.join()
    assert code == 128 + number
    ended = run_record.read_end(run.run_dir)
    assert ended["code"] == code and ended["message"] == f"stopped by {number.name}"
    wait_until(lambda: alive(tmp_path / "sending") == [])


def test_a_start_up_file_that_spoils_rsync_s_answer_is_named(hosts, tmp_path):
    (node,) = hosts("a")
    (tmp_path / "homes" / "a" / ".bashrc").write_text("echo you have new mail\n")
    with pytest.raises(MusterError, match="a: the start-up file"):
        transfer.send_checkout([node], SshConfig())


# -- the data of a run ----------------------------------------------------------------------------

# A wrapper for rsync on this machine, not on nodes: it records its process number. While a file
# `slow` exists, it limits the speed; otherwise it writes a log.
RECORDS = """#!/bin/bash
case $1 in --server) exec {rsync} "$@" ;; esac
echo $$ >> {folder}/started
[ ! -e {folder}/slow ] || exec {rsync} --bwlimit=2m "$@"
exec {rsync} --stats --log-file={folder}/log.$$ "$@"
"""


@pytest.fixture
def recorded(hosts, tmp_path, monkeypatch):
    """Record each rsync of this machine; return a function that lists their process numbers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    recording = RECORDS.format(rsync=shutil.which("rsync"), folder=tmp_path)
    executable(tmp_path / "bin" / "rsync", recording)
    return lambda: (tmp_path / "started").read_text().splitlines()


@pytest.fixture
def data(tmp_path):
    folder = write(tmp_path / "data", {"a.txt": "first", "deep/large": os.urandom(3_000_000)})
    (folder / "link").symlink_to("deep/large")
    Path(os.fsdecode(bytes(folder) + b"/\xff")).write_text("not UTF-8")
    return folder


def send(data: Path, nodes, place: str = "~/my set") -> list[Path]:
    sending = DataSending(str(data), place)
    return [*map(Path, transfer.send_data(sending, nodes, SshConfig(), quiet=True).values())]


def below(folder: Path) -> dict[str, bytes | str]:
    """Return the contents of all files and links below a folder, except Muster's mark."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if not path.is_symlink() else "link"
        for path in folder.rglob("*")
        if not path.is_dir() and path.name != node_data.DATA_MARK
    }


@pytest.mark.usefixtures("recorded")
def test_odd_place_is_taken_as_it_is_unless_rsync_would_expand_it(hosts, data, tmp_path):
    nodes = hosts("a")
    home = tmp_path / "homes/a"
    name = '-it\'s `id` $(id) "a" \\b; c'
    assert send(data, nodes, f"~/{name}") == [home / name]
    assert below(home / name) == below(data)
    other = write(home / ".set1.muster-sending/data", {"mine": ""})
    with pytest.raises(MusterError, match=r"a: .*/set\[1\] .*rsync"):
        send(data, nodes, "~/set[1]")
    assert below(other) == {"mine": b""}


def test_interrupted_rsync_leaves_no_place_and_sends_the_rest_next_time(
    hosts, data, recorded, tmp_path
):
    (node,) = hosts("a")
    (tmp_path / "slow").touch()
    folder = tmp_path / "homes/a/.my set.muster-sending"

    def size_bytes() -> int:
        (copied, *_) = [*folder.glob("data/deep/.large.*"), *folder.glob("partial/large"), None]
        return copied.stat().st_size if copied else 0

    def interrupt():
        wait_until(lambda: size_bytes() > 1_000_000)
        os.kill(int(recorded()[0]), signal.SIGTERM)

    user = threading.Thread(target=interrupt)
    user.start()
    with pytest.raises(MusterError, match="run the same command"):
        send(data, [node])
    user.join()
    assert not (tmp_path / "homes/a/my set").exists()
    wait_until((folder / "partial/large").exists)
    came = size_bytes()
    (tmp_path / "slow").unlink()
    (place,) = send(data, [node])
    assert below(place) == below(data) and not folder.exists()
    (log,) = tmp_path.glob("log.*")
    sent = int(re.search(r"sent ([\d,]+) bytes", log.read_text())[1].replace(",", ""))
    assert sent < 3_100_000 - came


@pytest.mark.needs("root")
def test_node_with_a_full_disk_is_named_and_ends_other_transfers(hosts, data, recorded, tmp_path):
    nodes = hosts("a", "b")
    (tmp_path / "slow").touch()
    full = tmp_path / "homes/b/disk"
    full.mkdir()
    write(data, {"more": os.urandom(20_000_000)})
    subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", "size=2m", "tmpfs", full], check=True)
    try:
        with pytest.raises(MusterError) as refused:
            send(data, nodes, "~/disk/set")
        (line,) = str(refused.value).splitlines()
        assert line.startswith(
            f"b: {full}/set: No space left on device; the partial copy was removed"
        )
        assert [*full.iterdir()] == []
    finally:
        subprocess.run(["umount", full], check=True)
    assert not (tmp_path / "homes/a/disk/set").exists()
    assert not (tmp_path / "homes/a/disk/.set.muster-sending/data/more").exists()
    wait_until(lambda: alive(data) == [])


@pytest.mark.usefixtures("recorded")
def test_signal_during_data_transfer_ends_every_rsync(hosts, data, tmp_path):
    nodes = hosts("node0", "node1", "node2")
    executable(tmp_path / "bin" / "rsync", STUCK.format(folder=tmp_path))

    def interrupt():
        wait_until((tmp_path / "sending").exists)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    user = threading.Thread(target=interrupt)
    user.start()
    with pytest.raises(KeyboardInterrupt):
        send(data, nodes)
    user.join()
    wait_until(lambda: alive(tmp_path / "sending") == [])
