"""What keeps a worker from computing: others on its cores, a limit, swap, too little memory.

Sources: schedstats in the kernel's documentation (time that a task waited for a core), proc(5)
(VmSwap), the kernel's page on pressure-stall information, and those on the cpu controller of
cgroups, version 1 (`throttled_time`, nanoseconds) and 2 (`throttled_usec`).
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
SHARE = 0.1  # of the time: less is not worth a word
SWAPPED_BYTES = 50e6


@dataclass(frozen=True)
class Contention:
    """What one process has waited for since it began; 0 where the kernel does not tell."""

    core_s: float = 0.0  # for a core, all its threads
    throttled_s: float = 0.0  # all of its cgroup, for its limit of processor time
    memory_s: float = 0.0  # any of its cgroup, or of the node, for memory
    swapped_bytes: int = 0
    at: float = field(default_factory=time.monotonic)


def contention_of(pid: int) -> Contention:
    """One look at a process."""
    cgroups = dict(_cgroups(pid))
    return Contention(
        core_s=sum(_waited_ns(task) for task in _tasks(pid)) / 1e9,
        throttled_s=_throttled_s(cgroups),
        memory_s=_stalled_s(cgroups),
        swapped_bytes=int(_value(_read(PROC / str(pid) / "status"), "VmSwap:")) * 1024,
    )


def causes(before: Contention, after: Contention) -> list[str]:
    """Why it was slow between two looks, as far as can be seen."""
    elapsed_s = max(after.at - before.at, 1e-3)
    found = []
    waited = (after.core_s - before.core_s) / elapsed_s
    if waited > SHARE:
        found.append(f"its threads wait {waited:.2g} s in every second for a core: others use them")
    throttled = (after.throttled_s - before.throttled_s) / elapsed_s
    if throttled > SHARE:
        found.append(f"its cgroup is held back {throttled:.0%} of the time by its processor limit")
    stalled = (after.memory_s - before.memory_s) / elapsed_s
    if stalled > SHARE:
        found.append(f"memory is short: tasks stall {stalled:.0%} of the time for it")
    if after.swapped_bytes > SWAPPED_BYTES:
        found.append(f"{after.swapped_bytes / 1e6:.0f} MB of it are swapped out")
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(PROC / str(pid) / "task")]
    except OSError:
        return []


def _waited_ns(task: Path) -> int:
    fields = _read(task / "schedstat").split()
    return int(fields[1]) if len(fields) > 1 else 0


def _cgroups(pid: int) -> Iterator[tuple[str, str]]:
    """The path of its cgroup by controller; of version 2 by an empty name."""
    for line in _read(PROC / str(pid) / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path.lstrip("/")


def _throttled_s(cgroups: dict[str, str]) -> float:
    if "cpu" in cgroups:  # version 1
        text = _read(CGROUPS / "cpu" / cgroups["cpu"] / "cpu.stat")
        return _value(text, "throttled_time") / 1e9
    return _value(_read(CGROUPS / cgroups.get("", "") / "cpu.stat"), "throttled_usec") / 1e6


def _stalled_s(cgroups: dict[str, str]) -> float:
    own = _read(CGROUPS / cgroups[""] / "memory.pressure") if "" in cgroups else ""
    text = own or _read(PROC / "pressure" / "memory")
    some = next((line for line in text.splitlines() if line.startswith("some ")), "")
    total = some.rpartition("total=")[2]
    return int(total) / 1e6 if total.isdigit() else 0.0


def _value(text: str, name: str) -> float:
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return float(words[1])
    return 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or this kernel has no such file
        return ""
