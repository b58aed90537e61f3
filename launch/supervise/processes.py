"""Nothing that a launcher started outlives it: not by Ctrl-C, not by a crash, not by kill -9."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
KILLED = 128 + signal.SIGKILL


def adopt_orphans() -> None:
    """Have processes whose parent dies become children of this one, so that it can end them.

    A torchrun agent that is killed leaves its workers, each in a session of its own, behind.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def dies_with_parent() -> Callable[[], None] | None:
    """For `Popen(preexec_fn=...)`: the kernel kills the child when this process is gone.

    It ignores USR1 and USR2, too: torchrun would die of them, and leave its workers.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: the forked child should do next to nothing
    parent = os.getpid()

    def ask() -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone before it could be asked
            os._exit(KILLED)

    return ask


def die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(KILLED)


def ask(pids: Sequence[int]) -> None:
    """Send SIGTERM to those of `pids` that are below this process."""
    import psutil

    _signal(
        [one for one in psutil.Process().children(recursive=True) if one.pid in pids],
        signal.SIGTERM,
    )


def end_descendants(
    grace_s: float,
    in_a_hurry: Callable[[], bool] = lambda: False,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """End every process below this one: SIGTERM, and after `grace_s` or in a hurry SIGKILL."""
    import psutil  # here, since --help and --dry-run do not need it

    own = psutil.Process()
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    while remaining := [child for child in own.children(recursive=True) if _runs(child)]:
        if time.monotonic() > deadline or in_a_hurry():
            _signal(remaining, signal.SIGKILL)
        else:
            _signal([child for child in remaining if child.pid not in asked], signal.SIGTERM)
            asked |= {child.pid for child in remaining}
        psutil.wait_procs(remaining, timeout=0.1)  # reaps those that are our children
        meanwhile()


def _runs(process) -> bool:  # type: ignore[no-untyped-def]  # psutil is imported lazily
    import psutil

    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(processes: Sequence, number: int) -> None:  # type: ignore[type-arg]
    import psutil

    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
