"""Log in, and try again if a busy server drops the login: `connect.py TURN ssh ...`.

An sshd with OpenSSH's default MaxStartups drops connections at random while ten others are logging
in, and all logins of a run may go through the same jump host. TURN is the number of logins that
begin just before this one: the first eight start immediately, and each further group of eight a
moment later. A dropped login has not read anything from stdin yet, so another try loses nothing.

ssh's stderr is passed on as it comes, except for the lines of a dropped login, which are shown only
if all tries fail. SIGTERM ends ssh and this process, even between two tries. If this process is
killed, the kernel sends SIGTERM to ssh. Ctrl-C in a terminal reaches ssh directly.
"""

import importlib
import os
import signal
import subprocess
import sys
import time
import types
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

# Loaded by its path: this is a script, and importing `muster` would take longer than all the rest.
_package = sys.modules.setdefault("_muster", types.ModuleType("_muster"))
_package.__path__ = [str(Path(__file__).resolve().parents[2] / "muster" / "worker")]
process = importlib.import_module("_muster.process")

BUSY = (b"kex_exchange_identification", b"ssh_exchange_identification", b"banner exchange")
# Waits between tries; they end before a silent agent counts as lost, which is after 15 s.
WAITS_S = (0.5, 1.0, 2.0, 4.0)
AT_ONCE = 8
EVERY_S = 0.25
NOT_CONNECTED = 255  # ssh's own exit code if it cannot connect


def main() -> int:
    turn, *argv = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also sends it to ssh
    signal.signal(signal.SIGTERM, _stop)
    time.sleep(int(turn) // AT_ONCE * EVERY_S)
    for wait_s in (*WAITS_S, None):
        code, held_back = call(argv)
        if code != NOT_CONNECTED or not held_back or wait_s is None:
            break
        import random  # here, since most logins succeed at once and need no random number

        time.sleep(wait_s * random.uniform(0.5, 1.5))
    sys.stderr.buffer.write(held_back)
    return code


def call(argv: list[str]) -> tuple[int, bytes]:
    """Run ssh; return its exit code and its lines about a dropped login, and pass on all others."""
    child = partial(_as_child, os.getpid())
    ssh = subprocess.Popen(argv, stderr=subprocess.PIPE, preexec_fn=child)  # noqa: PLW1509 (there are no threads)
    assert ssh.stderr is not None
    held_back = b""
    try:
        for line in ssh.stderr:
            if held_back or any(mark in line for mark in BUSY):
                held_back += line
            else:
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
    except BaseException:
        ssh.terminate()
        raise
    finally:
        code = ssh.wait()
    return (code if code >= 0 else 128 - code), held_back


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _as_child(parent: int) -> None:
    """Let Ctrl-C end this process, and end it when its parent ends for any reason."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    process.end_with_parent(signal.SIGTERM, parent)


if __name__ == "__main__":
    sys.exit(main())
