"""Ensure that no process outlives its launcher, whether this ends by Ctrl-C, a crash or kill -9.

How it works: the process that starts others is their subreaper. So a process whose parent dies
becomes a child of the subreaper, and is still found below it. To end the tree, it is walked again
and again until nothing in it runs, since a process may fork or change its parent between two walks.
Each process gets SIGTERM once, when it is first seen. After a grace period it gets SIGKILL on every
walk. Signals go through psutil, which identifies a process by pid and start time, so a process that
has reused a pid gets no signal. If the subreaper itself is killed, the kernel ends its children
(PR_SET_PDEATHSIG). Each of our processes requests this, and then checks that its parent still
exists, since the parent may have died earlier. This module also handles the signals that end a run,
in the process that leads it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import psutil

from launch.deadlines import KILLED_PROCESS_IS_GONE_S, PROCESS_TREE_TICK_S, STARTED_PROCESS_TICK_S
from launch.nodes.channel import running_s
from muster.orderly_stop import ALSO_STOP, STOP_SIGNALS
from muster.printable import signal_name
from muster.worker.process import PR_SET_CHILD_SUBREAPER, prctl

REPORTED_STATES = {
    "stopped": "had been stopped by a signal (SIGSTOP)",
    "disk-sleep": "was waiting for a disk or a file server",
    "tracing-stop": "was held by a debugger",
}


@dataclass
class TerminatedProcess:
    """A process that was alive when its end was requested, and what became of it."""

    pid: int
    rank: int | None  # None if it is not a worker
    state: str  # its state then, if that is worth reporting
    signal: str = "SIGTERM"  # the last signal that it was sent
    survives: bool = False


def adopt_orphans() -> None:
    """Make processes whose parent dies children of this one, so that it can end them.

    A torchrun agent that is killed leaves its workers, each in its own session.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(excluded: Collection[int]) -> None:
    """Collect adopted processes that have ended; otherwise each stays a zombie until this one ends.

    `excluded` processes are not collected, nor are processes in this process's own session, such as
    processes that `subprocess.run` starts in a thread. Other code waits for these processes and
    needs their exit codes.
    """
    while sys.platform == "linux":
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid in excluded or os.getsid(ended.si_pid) == os.getsid(0):
                return  # other code collects it; a later call collects the next ones
            os.waitpid(ended.si_pid, 0)
        except OSError:  # there is no child, or it was collected meanwhile
            return


def send_sigterm(pids: Collection[int]) -> None:
    """Send SIGTERM to the processes in `pids` that are below this process."""
    for process in descendants():
        if process.pid in pids:
            _signal(process, signal.SIGTERM)


def children() -> frozenset[int]:
    """The processes that this one has started or adopted."""
    return frozenset(child.pid for child in psutil.Process().children())


def descendants(excluded: Collection[int] = ()) -> list[psutil.Process]:
    """All processes below this one, except `excluded` children and their descendants."""
    if not excluded:  # each call to psutil reads the processes of the whole machine
        return psutil.Process().children(recursive=True)
    below = []
    for child in psutil.Process().children():
        if child.pid not in excluded:
            with suppress(psutil.NoSuchProcess):
                below += [child, *child.children(recursive=True)]
    return below


def end_descendants(
    grace_s: float,
    at_once: Callable[[], bool] = lambda: False,
    meanwhile: Callable[[], None] = lambda: None,
    excluded: Collection[int] = (),
    staying: Collection[int] = (),
) -> list[TerminatedProcess]:
    """End every process below this one, except `excluded` children; return those that were alive.

    Processes below an `excluded` child are not ended either. A `staying` child is not ended, but
    processes below it are.

    First SIGTERM is sent, then SIGKILL after `grace_s`, or as soon as `at_once()` is true. A
    process that survives even SIGKILL for `KILLED_PROCESS_IS_GONE_S` is given up, and marked.
    """
    deadline = running_s() + grace_s
    given_up: float | None = None
    processes: dict[int, TerminatedProcess] = {}
    while remaining := [
        process
        for process in descendants(excluded)
        if process.pid not in staying and _runs(process)
    ]:
        now = running_s()
        if given_up is not None and now > given_up:
            break
        kills = now > deadline or at_once()
        if kills and given_up is None:
            given_up = now + KILLED_PROCESS_IS_GONE_S
        new = [process for process in remaining if process.pid not in processes]
        for process in new:  # before any signal: a process that ends may end others below it
            rank, state = rank_of(process), _state(process)
            processes[process.pid] = TerminatedProcess(process.pid, rank, state)
        for process in remaining if kills else new:
            if kills:
                processes[process.pid].signal = "SIGKILL"
            _signal(process, signal.SIGKILL if kills else signal.SIGTERM)
        # this also collects the exit codes of our children
        psutil.wait_procs(remaining, timeout=PROCESS_TREE_TICK_S)
        meanwhile()
    for process in remaining:
        processes[process.pid].survives = True
    return list(processes.values())


def end_started(
    started: Sequence["subprocess.Popen[bytes]"],
    grace_s: float,
    at_once: Callable[[], bool] = lambda: False,
    patience_s: float = 0.0,
) -> None:
    """End these processes, which this process has started, and no others.

    They have `patience_s` to end by themselves.
    """
    for seconds, end in (
        (patience_s, subprocess.Popen.terminate),
        (grace_s, subprocess.Popen.kill),
    ):
        deadline = running_s() + seconds
        while any(process.poll() is None for process in started):
            if running_s() > deadline or at_once():
                break
            time.sleep(STARTED_PROCESS_TICK_S)
        for process in started:
            end(process)
    for process in started:
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_PROCESS_IS_GONE_S)


def rank_of(process: psutil.Process) -> int | None:
    """The rank of a worker; None if the process is not a worker.

    A worker has a rank and leads a session, whether torchrun or Muster has started it. Its data
    loading processes inherit its rank, but do not lead a session.
    """
    with suppress(psutil.Error, OSError):
        rank = rank_text(process)
        return int(rank) if rank.isdigit() and os.getsid(process.pid) == process.pid else None
    return None


def rank_text(process: psutil.Process) -> str:
    """A process's rank, from its environment or from the name that `preload.py` gives it; or "".

    Raises:
        psutil.Error: it has ended, or is another user's.
    """
    named = re.fullmatch(r"rank (\d+)", process.name())
    return str(process.environ().get("RANK", "")) or (named[1] if named else "")


def _state(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return REPORTED_STATES.get(process.status(), "")
    return ""


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it may now be another user's
        process.send_signal(number)


class Stopped(BaseException):
    """A signal requests the end of the run."""

    def __init__(self, number: int) -> None:
        super().__init__(signal_name(number))
        self.number = number


_handlers: dict[int, Callable[[int, FrameType | None], None]] = {}  # set here, for `ALSO_STOP`


def on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    """Have stop signals call `handler` from now on."""
    for number in STOP_SIGNALS:
        # under nohup SIGHUP is ignored, so that a run outlives its terminal
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
    for number in ALSO_STOP:
        if signal.getsignal(number) in (signal.SIG_DFL, _handlers.get(number, signal.SIG_DFL)):
            signal.signal(number, handler)
            _handlers[number] = handler


@contextmanager
def between_attempts(received: Sequence[int]) -> Iterator[None]:
    """A context between attempts, in which a signal raises `Stopped` at once.

    A signal that was received before also raises it. The handlers stay until other code, such as
    the next attempt, takes over the signals.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        on_stop(lambda number, frame: None)  # one signal is enough
        raise Stopped(number)

    on_stop(stop)
    if received:
        raise Stopped(received[0])
    yield
