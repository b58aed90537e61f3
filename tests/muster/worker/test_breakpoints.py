"""`breakpoint()` in a worker waits for a connection, survives its loss, and can be left."""

import os
import socket
import subprocess
import sys

import pytest

from configs.plugins import REPOSITORY
from tests.launch.submit import wait_until

PROGRAM = """
def step(number):
    double = 2 * number
    breakpoint()
    return double
for number in range(1, 5):
    print(step(number), flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    folder = tmp_path / "inspection"
    folder.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {**os.environ, "MUSTER_INSPECTION": str(folder), "RANK": "2", "MUSTER_RUN_ID": "r7"}
    env.pop("PYTHONBREAKPOINT", None)
    main = str(REPOSITORY / "muster" / "worker" / "worker_main.py")
    process = subprocess.Popen(
        [sys.executable, main, str(tmp_path / "program.py")],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert wait_until((folder / "rank_00002.sock").exists)
    yield process, folder / "rank_00002.sock"
    process.kill()
    process.communicate()


def talk(path, *lines):
    """What the debugger answers to these lines, until it hangs up."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(300)
        connection.connect(str(path))
        connection.sendall(b'{"ask": "debug"}\n' + "".join(f"{line}\n" for line in lines).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile() as answers:
            return answers.read()


def test_a_debugger_comes_goes_and_comes_again(worker):
    process, path = worker
    notice = process.stderr.readline()
    assert "rank 2 waits at a breakpoint" in notice and "program.py:4 in step" in notice
    assert "muster jobs debug r7 --rank 2" in notice
    first = talk(path, "p double", "w")
    assert "(rank 2) 2\n" in first and "-> return double" in first
    # it waits at the same line; without a connection, it waits at the next breakpoint, too
    second = talk(path, "double = 70", "c")
    assert "-> return double" in second
    assert process.stdout.readline() == "70\n"
    assert "left; the program goes on" in talk(path, "q")
    out, _ = process.communicate(timeout=300)
    assert out == "4\n6\n8\n" and process.returncode == 0
