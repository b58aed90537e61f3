"""How often the kernel has killed a process of this node's part for lack of memory."""

from pathlib import Path

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def kills(root: Path = CGROUPS, own: Path = OWN) -> int:
    """What this process's cgroup has counted so far, of either version; 0 where it cannot be read.

    A scheduler gives each job a cgroup with the memory it asked for. Version 2 counts in
    `memory.events`, version 1 in `memory.oom_control`, both on a line `oom_kill N`.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            file = root / path.lstrip("/") / "memory.events"
        elif "memory" in controllers.split(","):
            file = root / "memory" / path.lstrip("/") / "memory.oom_control"
        else:
            continue
        try:
            pairs = [pair.split() for pair in file.read_text(encoding="utf-8").splitlines()]
        except OSError:
            continue
        return next((int(pair[1]) for pair in pairs if pair[:1] == ["oom_kill"]), 0)
    return 0
