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
import time
from contextlib import suppress
from types import FrameType

STOPPED = 75
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE, GRACE_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30.0  # torchrun's variable, in seconds
LOOK_S = 0.02
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
    code = _Wait(workers).run()
    sys.stderr.flush()
    os._exit(code)  # without the exit handlers of libraries that it has imported


def _be_a_new_process() -> None:
    """Give the process its own session, and Python's signal handlers of a new process."""
    os.setsid()
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


class _Wait:
    """From the fork to the end of the last worker."""

    def __init__(self, workers: dict[int, int]) -> None:
        self._running = workers
        self._codes: list[int] = []
        self._signal = 0  # the signal that ends this process
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        for number in ENDING:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def run(self) -> int:
        """Wait until no worker runs; return the exit code."""
        while self._running:
            if self._signal:
                self._stop(self._signal)
            now = time.monotonic()
            if self._stop_at is not None and now >= self._stop_at:
                self._stop(signal.SIGTERM)
            if self._kill_at is not None and now >= self._kill_at:
                self._send(signal.SIGKILL)
            self._reap()
            time.sleep(LOOK_S)
        if self._signal:
            return 128 + self._signal
        if any(code not in (0, STOPPED) for code in self._codes):
            return 1
        return STOPPED if STOPPED in self._codes else 0

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number

    def _stop(self, number: int) -> None:
        """Ask the workers to end, once; those left after the grace period are killed."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + float(os.environ.get(GRACE) or GRACE_S)
            self._send(number)

    def _send(self, number: int) -> None:
        for pid in self._running:
            os.kill(pid, number)  # it exists, since only this process waits for it

    def _reap(self) -> None:
        for pid in list(self._running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                rank = self._running.pop(pid)
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                if code not in (0, STOPPED):
                    if self._stop_at is None:  # the first: in torchrun's form, for the agent
                        with suppress(OSError):
                            os.write(2, f"failed (exitcode: {code}) local_rank: {rank} \n".encode())
                    self._stop_at = time.monotonic() + ECHO_S
                self._codes.append(code)
