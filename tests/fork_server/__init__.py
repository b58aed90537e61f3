"""A fork server: `interpreter()` is a Python forked from one that has imported the libraries.

torch and transformers take two to four seconds of a core to import, and a run of four nodes does
so eight times. What is started by `interpreter()` is what it would be otherwise, real torchrun and
real workers, but for these imports. Tests of what a process imports, of whose child it is, or of
how it is killed take `sys.executable`.
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
# Set for tests that `make test-quick` leaves out as soon as they start a worker.
QUICK = "MUSTER_TEST_QUICK"
# The folder of one that all processes share which test at the same time.
SHARED = "TESTS_FORK_SERVER"
OWN_BOX = Path("/run/own-box")  # made by tests/cluster/boxed.sh


def interpreter(*, for_workers: bool = True) -> str:
    """The path of the client, which has the server fork in place of a new Python."""
    if for_workers:
        skip_if_quick()
    return _started()


def skip_if_quick() -> None:
    """Leave this test to `make test`, where only quick ones are wanted."""
    if QUICK in os.environ:
        pytest.skip("it starts processes: make test")


def below(process: psutil.Process) -> list[psutil.Process]:
    """Its children, their children and so on; a client has those of what is forked for it."""
    found = []
    for child in children(process):
        found += [child, *below(child)]
    return found


def children(process: psutil.Process) -> list[psutil.Process]:
    """What a process has started; a client has started what the process forked for it has."""
    with suppress(psutil.NoSuchProcess, FileNotFoundError):  # it has just ended
        for record in _folder().glob(f"socket.{process.pid}"):
            process = psutil.Process(int(record.read_text()))
        return process.children()
    return []


def processes() -> set[int]:
    """The server and what it has forked; the clients that asked for that are other processes."""
    found = set()
    for record in _folder().glob("socket.*"):
        with suppress(FileNotFoundError, ValueError):  # it has just ended, or just begun
            found.add(int(record.read_text()))
    return found


def share() -> None:
    """Have the processes that test take this one's, each of which would else make its own."""
    _begin()
    os.environ[SHARED] = str(_folder())


@cache
def _folder() -> Path:
    shared = os.environ.get(SHARED, "")
    if shared and not OWN_BOX.exists():  # from where that one's processes cannot be seen
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
