"""Fork a node's workers, for one attempt after another, and wait for them as torchrun does.

Signals that stop the run are passed on. If one worker fails, the others are ended. A worker that
does not end within its grace period is killed. The exit code of an attempt is 0 if all workers
ended well, 75 if all others stopped cleanly, 128 + N after signal N, else 1.

With an agent, this process stays after an attempt. It reports through a separate pipe, and reads
the next attempt from its original stdin. Both carry one JSON object per line:

    report        {"attempt": 0, "pids": [4711, 4712]}      it has forked
                  {"attempt": 0, "rank": 2, "exit_code": null, "signal": 9, "time_unix_s": 1.5e9}
                  {"attempt": 0, "code": 1}                 after the last worker
    next attempt  {"attempt": 1, "nproc": 2, "first_rank": 2, "argv": ["train.py"],
                   "env": {"MASTER_PORT": "29501", "MUSTER_CPUS": null}, "log": "/..."}

`env` has the variables that differ from this process's own; null removes a variable. Between
attempts this process ignores signals that are meant for workers. It ends when its stdin or its
agent ends.

This file is loaded by its path. It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

from .process import STOPPED

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any

END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"  # torchrun's, in seconds
GRACE_S = 30.0
# Time for the other workers to notice that one has failed, and to record how they ended. It starts
# again with each worker that fails, since they end one after another.
LOST_PEER_S = 1.5
READ_BYTES = 65_536


class AgentPipes:
    """The two pipes to the agent: one brings the next attempts, the other takes reports."""

    def __init__(self, reports: int) -> None:
        """Take over stdin, which no module and no worker may read."""
        self._reports = reports
        self._orders = os.dup(0)
        os.set_inheritable(reports, False)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._unread = b""

    def report(self, **values: Any) -> None:
        with suppress(OSError):  # the agent has ended: then the kernel ends this process, too
            os.write(self._reports, json.dumps(values).encode() + b"\n")

    def next_attempt(self) -> dict[str, Any] | None:
        """Wait for the next attempt; None if there is none."""
        while b"\n" not in self._unread:
            new = os.read(self._orders, READ_BYTES)
            if not new:
                return None
            self._unread += new
        line, _, self._unread = self._unread.partition(b"\n")
        attempt: dict[str, Any] = json.loads(line)
        return attempt

    def leave(self) -> None:
        """Close the pipes in a worker."""
        os.close(self._orders)
        os.close(self._reports)


def fork(attempt: dict[str, Any], agent: AgentPipes | None) -> tuple[int | None, dict[int, int]]:
    """Fork the workers of an attempt.

    Returns the local rank in each worker, and None in the process that has forked them; there the
    second value has the workers' ranks, by process id.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    if "log" in attempt:
        _write_to(attempt["log"])
    sys.stdout.flush()
    sys.stderr.flush()
    ranks: dict[int, int] = {}
    for local_rank in range(attempt["nproc"]):
        pid = os.fork()
        if pid == 0:
            _reset_process()
            if agent is not None:
                agent.leave()
            return local_rank, {}
        ranks[pid] = attempt["first_rank"] + local_rank
    if agent is not None:
        agent.report(attempt=attempt["attempt"], pids=list(ranks))
    return None, ranks


def _write_to(log: str) -> None:
    """Redirect all output to another file."""
    opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(opened, descriptor)
    os.close(opened)


def _reset_process() -> None:
    """Give the process its own session, and the signal handlers of a new Python process."""
    os.setsid()
    for number in (*END_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)


def _ignore_signals() -> None:
    """Ignore signals between attempts; by functions, as Python may be about to call a handler."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (*END_SIGNALS, signal.SIGALRM):
        signal.signal(number, lambda number, frame: None)


class Ending:
    """Ends the workers of an attempt by a signal, and by SIGKILL after their grace period."""

    def __init__(self, ranks: dict[int, int]) -> None:
        """Handle this process's signals. `ranks`: of the running workers, by process id."""
        self.received: int | None = None  # the signal that stops the run
        self._has_begun = False
        self._ranks = ranks
        self._grace_s = float(os.environ.get(GRACE_VARIABLE) or GRACE_S)
        for number in END_SIGNALS:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, self._go_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)

    def begin_soon(self) -> None:
        """Begin when the other workers have had time to record that one has failed."""
        if not self._has_begun:
            signal.setitimer(signal.ITIMER_REAL, LOST_PEER_S)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            self._send(number)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self._send(signal.SIGKILL if self._has_begun else signal.SIGTERM)

    def _send(self, number: int) -> None:
        self._has_begun = True
        signal.setitimer(signal.ITIMER_REAL, self._grace_s)
        for pid in list(self._ranks):
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(pid, number)


def wait(ranks: dict[int, int], attempt: dict[str, Any], agent: AgentPipes | None) -> int:
    """Wait until all workers have ended; return the exit code. `ranks`: by process id."""
    ending = Ending(ranks)
    codes: list[int] = []  # 0, STOPPED, or 1 for all others
    while ranks:
        pid, status = os.wait()
        rank = ranks.pop(pid)
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = os.WEXITSTATUS(status) if ended_by is None else None
        if agent is not None:
            how = {"exit_code": code, "signal": ended_by, "time_unix_s": time.time()}
            agent.report(attempt=attempt["attempt"], rank=rank, **how)
        if code not in (0, STOPPED):
            ending.begin_soon()
            code = 1
        codes.append(code)
    _ignore_signals()
    result = 1 if 1 in codes else max(codes)
    if ending.received is not None:
        result = 128 + ending.received
    if agent is not None:
        agent.report(attempt=attempt["attempt"], code=result)
    return result
