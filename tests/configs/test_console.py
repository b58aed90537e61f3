"""The status line appears only on a terminal, below everything printed meanwhile."""

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
from configs import console
console.start_status("connecting to 2 nodes")
print("on stdout")
print("error: on stderr", file=sys.stderr)
console.update_status("checking 2 nodes")
time.sleep(0.5)
console.end_status()
sys.stdout.buffer.write(b"a worker\\n")
"""


def printed(env, *, on_terminal=True):
    ours, its = pty.openpty()
    whole_env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", **env}
    stderr = its if on_terminal else subprocess.STDOUT
    stdout = its if on_terminal else subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=whole_env, stdout=stdout, stderr=stderr, check=True)
    os.close(its)
    if not on_terminal:
        return done.stdout.decode()
    text = os.read(ours, 65_536).decode()
    os.close(ours)
    return text.replace("\r\n", "\n")


def test_status_line_is_shown_until_it_ends():
    text = printed({})
    assert "connecting to 2 nodes: 0 s" in text and "checking 2 nodes: 0 s" in text
    assert "on stdout\n" in text and "error: on stderr\n" in text
    assert text.rpartition("nodes")[2].endswith("\x1b[2Ka worker\n")  # after the erased line


@pytest.mark.parametrize(("env", "on_terminal"), [({}, False), ({"TERM": "dumb"}, True)])
def test_elsewhere_there_is_no_status_line(env, on_terminal):
    lines = printed(env, on_terminal=on_terminal).splitlines()
    assert sorted(lines) == ["a worker", "error: on stderr", "on stdout"]
