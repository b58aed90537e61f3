"""A fork server: `interpreter()` is a Python forked from a process that has imported the libraries.

Importing torch and transformers takes two to four seconds of a core, and a run of four nodes
imports them eight times. Apart from these imports, the processes that `interpreter()` starts are
the usual ones: real torchrun and real workers. Tests of what a process imports, of its parent
process, or of how it is killed use `sys.executable`.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).parents[2]
START_S = 120
# If this is set, as by `make test-quick`, a test is skipped as soon as it starts a worker.
QUICK = "MUSTER_TEST_QUICK"
# The folder of a server that is shared by all processes that run tests at the same time.
SHARED = "TESTS_FORK_SERVER"
OWN_BOX = Path("/run/own-box")  # made by tests/cluster/boxed.sh


def interpreter(*, for_workers: bool = True) -> str:
    """Return the path of the client, which makes the server fork in place of a new Python."""
    if for_workers:
        skip_if_quick()
    return _started()


def skip_if_quick() -> None:
    """Skip this test, which `make test` runs, if only quick tests are wanted."""
    if QUICK in os.environ:
        pytest.skip("it starts processes: make test")


def below(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants; a client has those of the process that was forked for it."""
    found = []
    for child in children(process):
        found += [child, *below(child)]
    return found


def children(process: psutil.Process) -> list[psutil.Process]:
    """Return a process's children; a client has those of the process that was forked for it."""
    with suppress(psutil.NoSuchProcess, FileNotFoundError):  # it has just ended
        for record in _folder().glob(f"socket.{process.pid}"):
            process = psutil.Process(int(record.read_text()))
        return process.children()
    return []


def processes() -> set[int]:
    """Return the ids of the server and of its forks, but not of their clients."""
    found = set()
    for record in _folder().glob("socket.*"):
        with suppress(FileNotFoundError, ValueError):  # it has just ended, or just begun
            found.add(int(record.read_text()))
    return found


def share() -> None:
    """Let all processes that run tests use this process's server instead of starting their own."""
    _begin()
    os.environ[SHARED] = str(_folder())


@cache
def _folder() -> Path:
    shared = os.environ.get(SHARED, "")
    if shared and not OWN_BOX.exists():  # in a box, the shared server's processes are not visible
        return Path(shared)
    folder = tempfile.mkdtemp(prefix="muster-fork-server-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def _started() -> str:
    folder = _folder()
    if str(folder) != os.environ.get(SHARED):
        _begin()
    deadline = time.monotonic() + START_S
    while not (folder / "socket").exists():
        if not folder.exists() or time.monotonic() > deadline:
            raise RuntimeError((folder / "log").read_text())
        time.sleep(0.05)
    return str(folder / "python")


def _begin() -> None:
    folder = _folder()
    address = folder / "socket"
    text = Path(__file__).with_name("client.py").read_text(encoding="utf-8")
    client = folder / "python"
    client.write_text(
        f"#!{sys.executable} -IS\nSOCKET, PYTHON = {str(address)!r}, {sys.executable!r}\n{text}"
    )
    client.chmod(0o755)
    log = (folder / "log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.fork_server.server", str(address)],
        cwd=REPOSITORY,
        # as a worker sets it before it imports torch, which reads it then
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    (folder / "socket.server").write_text(str(server.pid))

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()

    atexit.register(end)
