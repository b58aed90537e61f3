"""A login that a busy server drops is tried again, and nothing else is."""

import signal
import subprocess
import sys

import psutil
import pytest

from launch.ssh import connect
from tests import commands
from tests.launch.submit import alive, wait_until

DROPPED = "kex_exchange_identification: Connection closed by remote host"


@pytest.fixture
def call(tmp_path):
    """A function that runs connect.py with a script in place of ssh, and counts its calls."""

    def call(script: str) -> tuple[int, str, int]:
        count = tmp_path / "count"
        text = f"echo >> {count}; n=$(wc -l < {count}); {script}"
        argv = [sys.executable, "-IS", connect.__file__, "0", "bash", "-c", text]
        done = commands.call(*argv)
        return done.returncode, done.stderr, len(count.read_text())

    return call


@pytest.mark.parametrize(
    ("text", "code"),
    [("Permission denied (publickey).\n", 255), ("", 255), (f"{DROPPED}\n", 1)],
    ids=["not let in", "lost later", "said by the program there"],
)
def test_login_error_that_no_retry_helps_is_passed_on(call, text, code):
    assert call(f"printf '{text}' >&2; exit {code}") == (code, text, 1)


def test_output_comes_at_once_and_a_signal_ends_all(tmp_path):
    stays = ["bash", "-c", f"echo is in >&2; exec tail -F {tmp_path}/none"]
    argv = [sys.executable, "-IS", connect.__file__, "0", *stays]
    for number, code in ((signal.SIGTERM, 128 + 15), (signal.SIGKILL, -9)):
        with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr.readline() == "is in\n"
            process.send_signal(number)
            assert process.wait(300) == code
            wait_until(lambda: alive(tmp_path) == [])


def test_sigterm_between_two_tries_ends_it_without_another_login(tmp_path):
    count = tmp_path / "count"
    drops = f"echo >> {count}; echo '{DROPPED}' >&2; exit 255"
    code = "from launch.ssh import connect; connect.WAITS_S = (600.0,); connect.main()"
    with subprocess.Popen([sys.executable, "-c", code, "0", "bash", "-c", drops]) as process:
        wait_until(lambda: count.exists() and not psutil.Process(process.pid).children())
        process.terminate()
        assert process.wait(300) == 128 + signal.SIGTERM
    assert len(count.read_text()) == 1
