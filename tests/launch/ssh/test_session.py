"""Commands on a login node go on without a connection, and old files of theirs are removed."""

import os
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.launch.submit import wait_until
from tests.written import write

SCRIPT = str(CHECKOUT / "launch" / "ssh" / "login_node" / "session.sh")
BEGUN = "import os, sys, time; print(os.environ['A'], os.getcwd(), flush=True); "
WAITS = "time.sleep(10_000)"


def session(verb, folder, *words, stdin="") -> subprocess.CompletedProcess[str]:
    return call("bash", SCRIPT, verb, folder, *words, stdin=stdin)


@pytest.fixture
def start_session(tmp_path):
    """A function that starts Python in a session; its folder and a variable contain a space."""
    folders = []

    def begin(code: str):
        folder = tmp_path / "sessions" / f"s{len(folders)}"
        (tmp_path / "a b").mkdir(exist_ok=True)
        lines = ["export A='x y'", f"cd -- {shlex.quote(str(tmp_path / 'a b'))} || exit"]
        lines += [f"exec {shlex.join([sys.executable, '-c', BEGUN + code])} </dev/null"]
        begun = session("start", folder, stdin="\n".join(lines))
        assert begun.returncode == 0, begun.stderr
        folders.append(folder)
        return folder

    yield begin
    for folder in folders:
        if folder.exists() and not (folder / "code").exists():
            session("interrupt", folder)
            wait_until((folder / "code").exists)


def test_login_command_is_followed_and_its_exit_code_known(start_session, tmp_path):
    folder = start_session("print('b', file=sys.stderr); sys.exit(255)")
    shown = session("follow", folder, "0", "0")
    assert (shown.returncode, shown.stdout) == (0, f"x y {tmp_path / 'a b'}\n")
    assert shown.stderr == "b\n" and session("end", folder).stdout == "255\n"
    again = session("follow", folder, "2", "1")
    assert (again.stdout, again.stderr) == (f"y {tmp_path / 'a b'}\n", "\n")
    assert session("interrupt", folder).returncode == 0  # there is nobody left to hear it


def test_login_command_without_its_waiter_is_lost(start_session):
    folder = start_session(WAITS)
    pid = (folder / "pid").read_text().strip()
    waiter = psutil.Process(int(pid)).ppid()
    os.kill(waiter, signal.SIGKILL)
    wait_until(lambda: session("end", folder).stdout == "lost\n")
    assert session("follow", folder, "0", "0").returncode == 0
    os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
    (folder / "code").touch()


def test_old_session_is_removed(start_session):
    first, running = start_session("pass"), start_session(WAITS)
    wait_until((first / "code").exists)
    (first.parent / "s0.call").mkdir()
    old = time.time() - 31 * 86_400
    for path in (first / "code", running):
        os.utime(path, (old, old))
    start_session("pass")
    assert sorted(path.name for path in first.parent.iterdir()) == ["s1", "s2"]


def test_only_sessions_are_removed(start_session, tmp_path):
    first = start_session("pass")
    wait_until((first / "code").exists)
    own = write(first.parent, {"mine/code": "", "mine/thesis": ""})
    write(tmp_path, {"project/code": "", "project/lock": "", "project/out": "", "project/err": ""})
    old = time.time() - 31 * 86_400
    for path in (own / "mine" / "code", tmp_path / "project" / "code"):
        os.utime(path, (old, old))
    start_session("pass")
    for odd in (f"{first}/../../x", f"{first.parent}/..", f"{tmp_path}/x"):
        refused = session("start", odd)
        assert (refused.returncode, refused.stderr) == (
            2,
            f"error: {odd} is not a folder of sessions/\n",
        )
    assert (own / "mine" / "thesis").exists() and (tmp_path / "project" / "code").exists()


def test_a_profile_that_reads_its_input_does_not_take_the_command(
    start_session, tmp_path, monkeypatch
):
    write(tmp_path / "home", {".bash_profile": "cat > /dev/null\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = start_session("pass")
    assert session("follow", folder, "0", "0").stdout == f"x y {tmp_path / 'a b'}\n"
