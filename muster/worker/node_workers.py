"""Fork the workers of a node, and wait for them as torchrun does.

Signals that end are passed on; one worker that fails ends the others; what does not end within its
grace is killed. The exit code: 0 if all ended well, 75 if all others stopped cleanly, 128 + N
after signal N, else 1.

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

STOPPED = 75
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE, GRACE_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30.0  # torchrun's own variable, in seconds
# Time for the others to find that one has failed, and to write down how they ended; as one after
# the other does, they get it again.
ECHO_S, KILL_AGAIN_S = 1.5, 1.0


def start(count: int) -> int:
    """Fork; return the local rank in each worker. The process that forks ends with their code."""
    watched = {*ENDING, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    sys.stdout.flush()
    sys.stderr.flush()
    workers: dict[int, int] = {}  # local rank, by pid
    for local_rank in range(count):
        pid = os.fork()
        if pid == 0:
            _be_a_new_process(watched)
            return local_rank
        workers[pid] = local_rank
    code = _Wait(list(workers), watched).run()
    sys.stderr.flush()
    os._exit(code)  # without what libraries do at the end of a process that has used them


def _be_a_new_process(watched: set[signal.Signals]) -> None:
    """A session of its own, and signals as Python has them when it starts."""
    os.setsid()
    for number in (*ENDING, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)


class _Wait:
    """From the fork to the end of the last worker."""

    def __init__(self, pids: list[int], watched: set[signal.Signals]) -> None:
        self._running = set(pids)
        self._local_ranks = {pid: local_rank for local_rank, pid in enumerate(pids)}
        self._codes: list[int] = []
        self._signal = 0  # that ends this process
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._wakes, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        for number in watched:
            signal.signal(number, lambda *_: None)  # the wakeup descriptor has it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, watched)

    def run(self) -> int:
        """Stay until no worker runs; the exit code."""
        self._reap()  # one may have ended before its end could be heard
        while self._running:
            times = [one for one in (self._stop_at, self._kill_at) if one is not None]
            left_s = max(0.0, min(times) - time.monotonic()) if times else None
            if select.select([self._wakes], (), (), left_s)[0]:
                for number in os.read(self._wakes, 512):
                    if number in ENDING:
                        self._signal = self._signal or number
                        self._stop(number)
            now = time.monotonic()
            if self._stop_at is not None and now >= self._stop_at:
                self._stop_at = None
                self._stop(signal.SIGTERM)
            if self._kill_at is not None and now >= self._kill_at:
                self._send(signal.SIGKILL)
                self._kill_at = now + KILL_AGAIN_S
            self._reap()
        return self._code()

    def _stop(self, number: int) -> None:
        """Ask the workers to end, once; what is left after the grace is killed."""
        if self._kill_at is None:
            self._kill_at = time.monotonic() + float(os.environ.get(GRACE) or GRACE_S)
            self._send(number)

    def _send(self, number: int) -> None:
        for pid in self._running:
            os.kill(pid, number)  # it exists: nobody else waits for it

    def _reap(self) -> None:
        for pid in list(self._running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._running.discard(pid)
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self._codes.append(code)
                if code not in (0, STOPPED):
                    if not any(one not in (0, STOPPED) for one in self._codes[:-1]):
                        rank = self._local_ranks[pid]  # as torchrun logs it, for the agent
                        with suppress(OSError):
                            os.write(2, f"failed (exitcode: {code}) local_rank: {rank} \n".encode())
                    self._stop_at = time.monotonic() + ECHO_S

    def _code(self) -> int:
        if self._signal:
            return 128 + self._signal
        if any(code not in (0, STOPPED) for code in self._codes):
            return 1
        return STOPPED if STOPPED in self._codes else 0
