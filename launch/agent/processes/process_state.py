"""What the kernel says of a process: whether it computes, sleeps, is stopped or has ended.

Sources: proc(5) for the fields of /proc/PID/stat; a state D that lasts is uninterruptible sleep.
"""

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
STATES = {
    "T": "is stopped by a signal (SIGSTOP)",
    "t": "is held by a debugger",
    "D": "is in uninterruptible sleep: a disk, a file server or a device",
    "Z": "has ended",
    "X": "has ended",
    "R": "computes",
}
# psutil's words for the letters of proc(5)
PORTABLE_LETTERS = {
    "running": "R",
    "stopped": "T",
    "disk-sleep": "D",
    "zombie": "Z",
    "dead": "X",
}


@dataclass(frozen=True)
class ProcessState:
    """One look at a process."""

    pid: int
    letter: str  # R, S, D, T, t, Z
    cpu_s: float  # all threads, since it began
    io_bytes: int  # read and written, since it began; 0 where that is not told
    page_faults: int  # minor ones, since it began

    @property
    def words(self) -> str:
        """Such as `is stopped by a signal (SIGSTOP)`."""
        return STATES.get(self.letter, "sleeps")

    @property
    def is_held(self) -> bool:
        """Whether it cannot go on by itself."""
        return self.letter in "TtD"


def state_of(pid: int) -> ProcessState | None:
    """What it does now; None: there is no such process."""
    if not PROC.exists():
        return _portable_state(pid)
    folder = PROC / str(pid)
    try:
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return ProcessState(
        pid=pid,
        letter=fields[0],
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
        io_bytes=_io_bytes(folder / "io"),
        page_faults=int(fields[7]),
    )


def _portable_state(pid: int) -> ProcessState | None:
    """What psutil tells where there is no `/proc`, as on macOS: no bytes, no faults."""
    import psutil

    try:
        process = psutil.Process(pid)
        times, status = process.cpu_times(), process.status()
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:  # another user's
        return ProcessState(pid, "S", 0.0, 0, 0)
    letter = PORTABLE_LETTERS.get(status, "S")
    return ProcessState(pid, letter, times.user + times.system, 0, 0)


def tree_of(pid: int) -> list[int]:
    """`pid` and all processes below it, parents first."""
    if not PROC.exists():
        return _portable_tree(pid)
    found = [pid]
    for one in found:
        try:
            tasks = list((PROC / str(one) / "task").iterdir())
        except OSError:
            continue
        for task in tasks:
            found += [int(child) for child in _read(task / "children").split()]
    return found


def _portable_tree(pid: int) -> list[int]:
    import psutil

    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal, which would otherwise end it."""
    for line in _read(PROC / str(pid) / "status").splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


def _io_bytes(path: Path) -> int:
    words = dict(line.split(": ") for line in _read(path).splitlines() if ": " in line)
    return int(words.get("rchar", 0)) + int(words.get("wchar", 0))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended, or is another user's
        return ""
