"""Where files are sent on a login node, and who may write there."""

import os
import sys
from pathlib import Path

import pytest

from launch.ssh.login_node import installation as installed
from launch.ssh.login_node.connection import Connection
from launch.ssh.login_node.remote_command import RemoteCommand
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from tests.commands import call
from tests.launch.ssh.conftest import READS, TITLE
from tests.written import executable, write


@pytest.fixture
def umask():
    """Set the umask to 002, as on a laptop and a login node where each user has their own group."""
    before = os.umask(0o002)
    yield
    os.umask(before)


def writable(folder: Path) -> list[str]:
    """Return the paths, at or below a folder, that users other than the owner may write."""
    every = [folder, *folder.rglob("*")]
    return [str(path) for path in every if not path.is_symlink() and path.stat().st_mode & 0o022]


def test_nobody_else_may_write_what_was_sent(installation, umask, tmp_path, checkout, monkeypatch):
    project = write(tmp_path / "project", {"src/train.py": "", "run.sh": "", "old.py": ""})
    (project / "run.sh").chmod(0o775)
    assert {*map(str, (project / "src", project / "run.sh"))} <= {*writable(project)}
    folder = Path(installed.send_project(installation, project))
    (folder / "old.py").chmod(0o666)  # as an earlier version of Muster sent it
    (project / "new.py").write_text("")
    assert Path(installed.send_project(installation, project)) == folder
    assert (folder / "run.sh").stat().st_mode & 0o777 == 0o755
    monkeypatch.setattr(installed, "CHECKOUT", checkout)
    connection = installation.connection
    installed.install(connection, installation.folder, "python3", whole=False, say=print)
    assert {path.name for path in Path(installation.folder).iterdir()} == {"projects", "versions"}
    assert writable(Path(installation.folder)) == []


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--run-id", "../../x"],
        ["run", "--run-id=a/../../x"],
        ["sweep", "--name", ".."],
        ["study", "--name=/x"],
        ["jobs", "fetch", "../x"],
    ],
    ids=" ".join,
)
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_sent(words, tmp_path):
    executable(tmp_path / "ssh", f"#!/bin/sh\ntouch {tmp_path}/called\nexit 255\n")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path / "state")}
    muster = [sys.executable, CHECKOUT / "muster" / "command.py"]
    done = call(*muster, *words, "--login", "node0", "--", "t.py", cwd=tmp_path, env=env)
    assert done.returncode == 2 and "use letters, digits, '.'" in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["ssh"]


def test_output_of_a_login_nodes_start_up_file_is_no_answer(installation, tmp_path, capfdbinary):
    """Nor is it counted with a command's output, which is resumed by size after a lost link."""
    write(tmp_path / "homes" / "node0", {".bashrc": TITLE})
    checkout = Path(installation.checkout)
    checkout.parent.mkdir(parents=True)
    checkout.symlink_to(CHECKOUT)
    command = RemoteCommand(installation, installation.new_session("noisy"))
    command.start(["sh", "-c", "echo out; echo err >&2; exit 7"], {}, "/")
    assert command.follow(lambda _: None) == 7
    assert capfdbinary.readouterr() == (b"out\n", b"err\n") and command.seen == [4, 4]
    with pytest.raises(MusterError, match=r"^node0: no\Z"):
        installation.connection.run(["sh", "-c", "echo no >&2; exit 1"])


def test_a_runtime_folder_that_was_removed_is_named(installation, tmp_path, monkeypatch):
    """As after `su`, or at the end of the session that it belongs to."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc/none")
    with pytest.raises(
        MusterError, match=r"^/proc/none/muster: No such file.*; set XDG_RUNTIME_DIR"
    ):
        Connection("node0")


@pytest.mark.parametrize(("start_up", "does"), [(READS, "reads"), ("echo bye; exit\n", "exits")])
def test_a_start_up_file_that_disturbs_the_shell_is_named(
    start_up, does, installation, tmp_path, checkout, monkeypatch
):
    monkeypatch.setattr(installed, "CHECKOUT", checkout)
    write(tmp_path / "homes" / "node0", {".bashrc": start_up})
    connection = installation.connection
    with pytest.raises(
        MusterError, match=f"^node0: the start-up file of its login shell.* {does} "
    ):
        installed.install(connection, installation.folder, "python3", whole=False, say=print)
