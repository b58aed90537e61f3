"""When a process began, so that another one which has its number now is not taken for it.

A process's wall time of starting is computed from that of the machine's, which moves whenever the
clock is set. The kernel's own count since the machine started does not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BOOT = Path("/proc/sys/kernel/random/boot_id")


def describe(pid: int) -> dict[str, Any]:
    """When process `pid` began, as JSON.

    Raises:
        psutil.Error: there is no such process.
    """
    import psutil  # here, since --help and --dry-run do not need it

    found: dict[str, Any] = {"started_unix_s": psutil.Process(pid).create_time()}
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        found["start_ticks"] = int(stat.rpartition(")")[2].split()[19])  # behind its name: 22nd
        found["boot_id"] = BOOT.read_text(encoding="utf-8").strip()
    except OSError:
        pass  # macOS, whose kernel keeps the wall time, and does not move it
    return found


def is_same(pid: int, record: Mapping[str, Any]) -> bool:
    """Whether process `pid` is the one of which `record` has what `describe` said.

    Raises:
        psutil.Error: there is no such process.
    """
    found = describe(pid)
    if "boot_id" in record and "boot_id" in found:
        return all(record[name] == found[name] for name in ("boot_id", "start_ticks"))
    return abs(float(found["started_unix_s"]) - float(record["started_unix_s"])) < 0.1
