"""A forked process shows its own command and environment in /proc, as one that was started does.

`ps`, and whoever looks for a worker by its RANK, read them there. Linux lets a process say where
they are (prctl(2), PR_SET_MM_MAP), where it was built with CHECKPOINT_RESTORE, as distributions
do; elsewhere those of the process that it was forked from are shown.

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14
# Fields of /proc/self/stat (proc(5)): code, data, heap and stack, in the order of prctl_mm_map.
FIELDS = (26, 27, 45, 46, 47)
START_STACK = 28
_shown: list[mmap.mmap] = []  # it stays as long as the process


def show(argv: Sequence[str]) -> bool:
    """Show `argv` and `os.environ` as this process's own; whether the kernel has taken them."""
    if not sys.platform.startswith("linux"):
        return False
    command = b"".join(os.fsencode(word) + b"\0" for word in argv)
    environment = b"".join(b"%s=%s\0" % pair for pair in os.environb.items())
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        libc = ctypes.CDLL(None, use_errno=True)
        libc.sbrk.restype = ctypes.c_void_p
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, len(command) + len(environment), flags=flags)
        memory[:] = command + environment
        begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        middle, end = begin + len(command), begin + len(command) + len(environment)
        layout = [int(fields[number - 3]) for number in FIELDS]
        layout += [libc.sbrk(0), int(fields[START_STACK - 3]), begin, middle, middle, end]
        packed = struct.pack("=12QIi", *layout, 0, 0, -1)
        size = ctypes.c_ulong(len(packed))
        taken: bool = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.c_char_p(packed), size, 0) == 0
    except (OSError, ValueError, IndexError):
        return False
    if taken:
        _shown.append(memory)
    return taken
