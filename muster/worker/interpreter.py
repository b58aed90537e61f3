"""Why a program that exists cannot be started: the kernel only says that a file is missing.

It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import errno
import shlex
import shutil
import socket
from pathlib import Path

DOS = "the line ends of DOS"
FIRST_BYTES = 256  # of its first line, as the kernel reads it


def problem(program: str, path: str | None = None) -> str | None:
    """What is wrong with the first line of a program, and what to do; None if it may be started.

    `path`: where programs are looked for, instead of PATH.
    """
    place = shutil.which(program, path=path)
    if place is None or not is_script(place):
        return None
    first = first_line(place)
    if first.endswith(b"\r"):
        return (
            f"{program} has {DOS}, with which its first line names no program; "
            f"convert it: sed -i 's/\\r$//' {shlex.quote(program)}"
        )
    words = first[2:].split()
    name = words[0].decode(errors="replace") if words else ""
    if shutil.which(name) is None:
        where = f"its first line names {name!r}, which is no program on {socket.gethostname()}"
        return f"{program}: {where}; correct the line, or install that program"
    return None


def explained(error: OSError, program: str, path: str | None = None) -> str:
    """One line on why a program could not be started."""
    if error.errno == errno.ENOEXEC:
        run = f"bash {shlex.quote(program)}"
        return f"{program} has no first line such as #!/bin/bash; add it, or run: {run}"
    return problem(program, path) or f"{program}: {error.strerror}"


def is_script(place: str) -> bool:
    """Whether its first line names the program that is started."""
    return first_line(place).startswith(b"#!")


def first_line(place: str) -> bytes:
    """The first line of a program; empty if it cannot be read."""
    try:
        with Path(place).open("rb") as file:
            return file.read(FIRST_BYTES).partition(b"\n")[0]
    except OSError:
        return b""
