"""Log in, and once more where a busy server has dropped the login: `connect.py TURN ssh ...`.

An sshd with OpenSSH's own MaxStartups drops connections at random while ten others are logging in,
and all logins of a run may go through one jump host. TURN is how many logins begin at the same
moment, before this one: a few are let through at once and the others wait. A login that was dropped
has not read anything of stdin yet, so another try loses nothing.

What ssh writes to stderr is passed on as it comes, but for the lines of a dropped login, which are
shown only if all tries fail. Whatever ends this process ends ssh: SIGTERM is passed on, and the
kernel sends it where this process is killed. A terminal's Ctrl-C reaches ssh by itself.
"""

import ctypes
import random
import signal
import subprocess
import sys
import time

BUSY = (b"kex_exchange_identification", b"ssh_exchange_identification", b"banner exchange")
WAITS_S = (0.5, 1.0, 2.0, 4.0)  # an agent that is silent for 15 s is taken for lost
AT_ONCE, EVERY_S = 8, 0.25
FAILED = 255  # ssh's own code where it does not get through
PR_SET_PDEATHSIG = 1


def main() -> int:
    turn, *argv = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to ssh as well
    time.sleep(int(turn) // AT_ONCE * EVERY_S)
    for wait_s in (*WAITS_S, None):
        code, held_back = call(argv)
        if code != FAILED or not held_back or wait_s is None:
            break
        time.sleep(wait_s * random.uniform(0.5, 1.5))
    sys.stderr.buffer.write(held_back)
    return code


def call(argv: list[str]) -> tuple[int, bytes]:
    """ssh's exit code, and its lines on a login that was dropped; all others are passed on."""
    ssh = subprocess.Popen(argv, stderr=subprocess.PIPE, preexec_fn=_as_child)  # noqa: PLW1509
    signal.signal(signal.SIGTERM, lambda *_: ssh.terminate())
    assert ssh.stderr is not None
    held_back = b""
    for line in ssh.stderr:
        if held_back or any(mark in line for mark in BUSY):
            held_back += line
        else:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
    code = ssh.wait()
    return (code if code >= 0 else 128 - code), held_back


def _as_child() -> None:
    """Take Ctrl-C as usual, and end with the parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
