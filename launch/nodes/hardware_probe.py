"""What the doctor measures on one node, and a run does not need to know: disks, limits, GPUs.

Its text is sent to the node, see `remote_probe`, so it needs the standard library of Python 3.6
alone.
"""

import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from subprocess import DEVNULL, PIPE

CHUNK_BYTES, CHUNKS = 2 << 20, 4
ENOUGH_S = 2.0  # of a disk so slow that eight megabytes take longer
GPU_S = 30
# In which a group's limit lies, of both versions; a large number is none.
CGROUP_LIMITS = ("/sys/fs/cgroup{}/memory.max", "/sys/fs/cgroup/memory{}/memory.limit_in_bytes")


def measure(asked):  # type: ignore[no-untyped-def]
    """Disks by their names, limits of a process started so, and GPUs where there are any."""
    node = asked["node"]
    folders, python = asked["folders"][node], asked["pythons"][node]
    shm = _usage("/dev/shm")
    return {
        "disks": {name: _disk(folder) for name, folder in folders.items()},
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "memory_limit_bytes": _memory_limit(),
        "shm_bytes": shm and shm.total,
        "shm_free_bytes": shm and shm.free,
        "gpus": _gpus(python, asked["gpu_health"]) if asked["has_gpus"][node] else None,
    }


def _disk(folder):  # type: ignore[no-untyped-def]
    """Free space, and bytes per second: written to the disk itself, and read from it again."""
    existing = folder
    while not os.path.isdir(existing) and existing != os.path.dirname(existing):
        existing = os.path.dirname(existing)
    usage = _usage(existing)
    found = {"folder": folder, "exists": existing == folder, "free_bytes": usage and usage.free}
    try:
        with tempfile.TemporaryFile(dir=existing, buffering=0) as file:
            return dict(found, **_speed(file))
    except OSError as error:
        return dict(found, failed=error.strerror or str(error))


def _speed(file):  # type: ignore[no-untyped-def]
    data = os.urandom(CHUNK_BYTES)  # what is alike, some file systems do not even write
    began, written = time.monotonic(), 0
    while written < CHUNKS * CHUNK_BYTES and time.monotonic() - began < ENOUGH_S:
        written += file.write(data)
        os.fsync(file.fileno())
    write_s = time.monotonic() - began
    # Else it would be read from memory; some network file systems do so all the same.
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    began = time.monotonic()
    while file.read(CHUNK_BYTES):
        pass
    read_s = time.monotonic() - began
    return {
        "write_bytes_s": written / max(write_s, 1e-9),
        "read_bytes_s": written / max(read_s, 1e-9),
    }


def _usage(folder):  # type: ignore[no-untyped-def]
    try:
        return shutil.disk_usage(folder)
    except OSError:
        return None


def _memory_limit():  # type: ignore[no-untyped-def]
    """What this process and its children may have at most: the least of all limits, or None."""
    limits = []
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    for group in _groups():
        while True:
            for pattern in CGROUP_LIMITS:
                try:
                    with open(pattern.format(group.rstrip("/"))) as file:
                        limits.append(int(file.read()))
                except (OSError, ValueError):  # not there, or "max"
                    continue
            if group in ("/", ""):
                break
            group = os.path.dirname(group)
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([one for one in limits if one < physical], default=None)


def _groups():  # type: ignore[no-untyped-def]
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return []
    return [parts[2] for parts in lines if len(parts) == 3 and parts[1] in ("", "memory")]


def _gpus(python, text):  # type: ignore[no-untyped-def]
    """What gpu_health.py prints there."""
    try:
        done = subprocess.run(
            [python, "-c", text],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL,
            check=False,
            timeout=GPU_S,
        )
        lines = done.stdout.decode(errors="replace").splitlines()
        return json.loads(lines[-1])
    except subprocess.TimeoutExpired:
        return {"failed": "no answer within %d s" % GPU_S}
    except (OSError, IndexError, ValueError) as error:
        return {"failed": str(error) or type(error).__name__}
