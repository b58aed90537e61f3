"""Fork the workers of a node, and wait for them as torchrun does.

Signals that stop the run are passed on. If one worker fails, the others are ended. A worker that
does not end within its grace period is killed. The exit code is 0 if all ended well, 75 if all
others stopped cleanly, 128 + N after signal N, else 1.

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

STOPPED = 75
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE, GRACE_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30.0  # torchrun's variable, in seconds
# Time for the other workers to find that one has failed, and to record how they ended. Each worker
# that ends starts it again, since they end one after another.
ECHO_S = 1.5


def start(count: int) -> int:
    """Fork; return the local rank in each worker. The forking process ends with their exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    sys.stdout.flush()
    sys.stderr.flush()
    workers: dict[int, int] = {}  # local rank, by pid
    for local_rank in range(count):
        pid = os.fork()
        if pid == 0:
            _be_a_new_process()
            return local_rank
        workers[pid] = local_rank
    code = _wait(workers)
    sys.stderr.flush()
    os._exit(code)  # without the exit handlers of libraries that it has imported


def _be_a_new_process() -> None:
    """Give the process its own session, and Python's signal handlers of a new process."""
    os.setsid()
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _wait(workers: dict[int, int]) -> int:
    """Wait until no worker runs; return the exit code."""
    received: list[int] = []
    codes: list[int] = []  # 0, 75, or 1 for all others
    left = [signal.SIGTERM, signal.SIGKILL]  # for workers that still run when the alarm rings

    def send(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGALRM:
            number = left[0]
        elif received:  # one is enough
            return
        else:
            received.append(number)
        del left[:-1]
        signal.setitimer(signal.ITIMER_REAL, float(os.environ.get(GRACE) or GRACE_S))
        for pid in list(workers):
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(pid, number)

    for number in (*ENDING, signal.SIGALRM):
        signal.signal(number, send)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    while workers:
        pid, status = os.wait()
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        rank = workers.pop(pid)
        if code not in (0, STOPPED):
            if 1 not in codes:  # the first: in torchrun's form, for the agent
                with suppress(OSError):
                    os.write(2, f"failed (exitcode: {code}) local_rank: {rank} \n".encode())
            if len(left) > 1:
                signal.setitimer(signal.ITIMER_REAL, ECHO_S)
            code = 1
        codes.append(code)
    if received:
        return 128 + received[0]
    return 1 if 1 in codes else max(codes)
