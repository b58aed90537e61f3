"""A login that a busy server drops is tried again, and nothing else is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.ssh import connect
from tests.launch.submit import wait_until

DROPPED = "kex_exchange_identification: Connection closed by remote host"


@pytest.fixture
def call(tmp_path):
    """Dials a program in ssh's place, which counts how often it was called."""

    def call(script: str) -> tuple[int, str, int]:
        count = tmp_path / "count"
        text = f"echo >> {count}; n=$(wc -l < {count}); {script}"
        argv = [sys.executable, "-IS", connect.__file__, "0", "bash", "-c", text]
        done = subprocess.run(argv, capture_output=True, text=True)
        return done.returncode, done.stderr, len(count.read_text())

    return call


@pytest.mark.parametrize(
    "script",
    [
        "echo 'Permission denied (publickey).' >&2; exit 255",
        "exit 255",
        f"echo '{DROPPED}' >&2; exit 1",
    ],
    ids=["not let in", "lost later", "said by the program there"],
)
def test_what_another_try_does_not_help_is_passed_on(call, script):
    code, err, calls = call(script)
    assert calls == 1 and code == (1 if "exit 1" in script else 255)
    assert err.strip() == (script.split("'")[1] if "'" in script else "")


def test_what_is_said_comes_at_once_and_who_ends_it_ends_all():
    stays = ["bash", "-c", "echo $$ >&2; exec sleep 10000"]
    argv = [sys.executable, "-IS", connect.__file__, "0", *stays]
    for number, code in ((signal.SIGTERM, 128 + 15), (signal.SIGKILL, -9)):
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        pid = int(process.stderr.readline())
        process.send_signal(number)
        assert process.wait(300) == code
        assert wait_until(lambda pid=pid: not _is_alive(pid))
        process.stderr.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
