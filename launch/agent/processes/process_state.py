"""The kernel's facts about a process: whether it computes, sleeps, is stopped or has ended."""

import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROC = Path("/proc")
COMPUTES = "computes"
DESCRIPTIONS = {  # by psutil's word for the state
    "stopped": "is stopped by a signal (SIGSTOP)",
    "tracing-stop": "is held by a debugger",
    "disk-sleep": "is in uninterruptible sleep: a disk, a file server or a device",
    "zombie": "has ended",
    "dead": "has ended",
    "running": COMPUTES,
}
SLEEPS = "sleeps"
HELD_STATES = ("stopped", "tracing-stop", "disk-sleep")
PATH_CHARACTERS = 1_000  # of an open file; only the end of a longer path is shown
# System calls whose first argument is an open file, by machine, since the kernel shows numbers.
FILE_CALLS = {
    "x86_64": {0: "read", 1: "write", 17: "pread64", 18: "pwrite64", 74: "fsync"},
    "aarch64": {63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 82: "fsync"},
}


@dataclass(frozen=True)
class ProcessState:
    """The facts about a process at one moment."""

    pid: int
    status: str  # in psutil's words
    cpu_s: float  # of all threads, since its start
    io_bytes: int  # read and written, since its start; 0 if unknown
    page_faults: int  # minor ones, since its start; 0 if unknown

    @property
    def words(self) -> str:
        """A text such as `is stopped by a signal (SIGSTOP)`."""
        if self.status == "disk-sleep" and (call := _file_call(self.pid)):
            return f"is in uninterruptible sleep, in {call}"
        return DESCRIPTIONS.get(self.status, SLEEPS)

    @property
    def is_held(self) -> bool:
        """Whether it cannot continue by itself."""
        return self.status in HELD_STATES


def state_of(pid: int) -> ProcessState | None:
    """The current state of a process; None if there is no such process."""
    io_bytes = 0
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status = process.status()
            times = process.cpu_times()
            with suppress(psutil.AccessDenied, AttributeError):  # another user's, or on macOS
                io = process.io_counters()
                io_bytes = io.read_chars + io.write_chars
    except psutil.Error:
        return None
    fields = _read(PROC / str(pid) / "stat").rpartition(")")[2].split()
    faults = int(fields[7]) if fields else 0
    return ProcessState(pid, status, times.user + times.system, io_bytes, faults)


def tree_of(pid: int) -> list[int]:
    """`pid` and all its descendants, parents first, as far as /proc shows them.

    This does not use psutil, which would read the processes of all users.
    """
    pids = [pid]
    for parent in pids:
        pids += _children_of(parent)
    return pids


def helpers_of(pid: int, *, is_program: bool) -> list[int]:
    """The processes that a worker's program has started, such as a pool that prepares data.

    `is_program`: whether `pid` is the program itself. Otherwise it is the command that runs the
    program, perhaps in a shell.
    """
    below = _children_of(pid)
    while not is_program and len(below) == 1:
        pid = below[0]
        below = _children_of(pid)
    return tree_of(pid)[1:]


def cpu_demand_s(pid: int) -> float:
    """Seconds for which a process has computed, or waited for a core on a busy machine.

    0 if it has ended, or the kernel does not count them.
    """
    seconds = 0.0
    with suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            seconds += sum(map(int, _read(task / "schedstat").split()[:2])) / 1e9
    return seconds


def _file_call(pid: int) -> str:
    """The system call on a file in which a process waits, such as `read of /nfs/x`; or ""."""
    words = _read(PROC / str(pid) / "syscall").split()
    try:
        name = FILE_CALLS.get(platform.machine(), {})[int(words[0])]
        file = (PROC / str(pid) / "fd" / str(int(words[1], 16))).readlink()
        return f"{name} of {str(file)[-PATH_CHARACTERS:]}"
    except (IndexError, KeyError, ValueError, OSError):  # another call, or another user's process
        return ""


def _children_of(pid: int) -> list[int]:
    pids = []
    with suppress(OSError):
        for task in (PROC / str(pid) / "task").iterdir():
            pids += [int(child) for child in _read(task / "children").split()]
    return pids


def catches(pid: int, number: int, *, now: bool = False) -> bool:
    """Whether a process has a handler for this signal, which would otherwise end it.

    `now`: the process must not block the signal either. After vfork(2) a process blocks signals
    until its handlers are gone; then it runs another program.
    """
    status = _read(PROC / str(pid) / "status")
    masks = dict(re.findall(r"^(SigBlk|SigCgt):\s*(\w+)$", status, re.MULTILINE))
    is_caught, is_blocked = (
        bool(int(masks.get(name, "0"), 16) >> (number - 1) & 1) for name in ("SigCgt", "SigBlk")
    )
    return is_caught and not (now and is_blocked)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended, or is another user's
        return ""
