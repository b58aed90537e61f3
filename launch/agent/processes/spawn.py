"""The processes that an agent starts: torchrun, or workers; before them what a shell is told."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.agent.assignment import Assignment
from launch.agent.processes import die_with_parent
from launch.spec import NodeCommand
from muster.errors import MusterError

LINES = 5  # of what a prologue that failed has printed


def spawn(command: NodeCommand, env: Mapping[str, str], log: Any) -> "subprocess.Popen[bytes]":
    """Start a process of a node, in a session of its own, that dies with this one.

    Raises:
        MusterError: there is no such program.
    """
    env = {**env, **command.env}
    program = command.argv[0]
    found = str(Path(command.cwd, program)) if "/" in program else program
    if shutil.which(found, path=env.get("PATH")) is None:
        raise MusterError(f"{program}: no such program, or it may not be run")
    if not Path(command.cwd).is_dir():
        where = f"{command.cwd}: no such folder on {socket.gethostname()}"
        raise MusterError(f"{where}; make it there, or leave out --no-snapshot")
    held = (
        sys.executable,
        "-ISs",
        str(Path(die_with_parent.__file__)),
        str(os.getpid()),
        *command.argv,
    )
    try:
        return subprocess.Popen(
            held,
            cwd=command.cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        raise MusterError(f"{program}: {error.strerror}") from None


def how_it_ended(code: int, command: NodeCommand, name: str) -> str:
    """A line on a process that has failed: `torchrun on node1 was killed by SIGKILL`."""
    rank = command.env.get("RANK")
    starter = "preload.py" if command.argv[1].endswith("preload.py") else "torchrun"
    what = starter if rank is None else f"rank {rank}"
    if code < 0:
        return f"{what} on {name} was killed by {signal.Signals(-code).name}"
    return f"{what} on {name} ended with exit code {code}"


def after_prologue(
    assignment: Assignment, env: dict[str, str], scratch: str, meanwhile: Callable[[], None]
) -> dict[str, str]:
    """The environment that bash has after it has sourced the prologue, given `env`.

    `meanwhile` is called until bash has ended; what it raises is raised here. What bash leaves
    running in the background goes on, with the run: its output is a file, which holds nobody up.

    Raises:
        MusterError: it failed, or there is no bash; with the end of what it printed.
    """
    if not assignment.prologue:
        return env
    script, result, output = (Path(scratch, name) for name in ("prologue.sh", "result", "printed"))
    script.write_text(assignment.prologue, encoding="utf-8")
    # Python itself writes the environment down: a PATH that has changed may lack `env`.
    dump = (
        "import os, sys\n"
        "pairs = [name + b'=' + value for name, value in os.environb.items()]\n"
        "open(sys.argv[1], 'wb').write(bytes(1).join(pairs))"
    )
    line = '. "$1" && exec "$2" -ISc "$3" "$4"'
    words = ["bash", "--noprofile", "--norc", "-c", line, "prologue", str(script)]
    argv = (*words, sys.executable, dump, str(result))
    try:
        with output.open("wb") as file:
            process = spawn(NodeCommand(assignment.name, 0, argv, {}, str(Path.cwd())), env, file)
    except MusterError as error:
        raise MusterError(f"--prologue on {assignment.name}: {error}") from None
    while process.poll() is None:
        meanwhile()
    if process.returncode or not result.exists():
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
        printed = "".join(f"\n{one}" for one in lines)
        raise MusterError(
            f"--prologue on {assignment.name} ended with exit code {process.returncode}:{printed}"
        )
    pairs = (pair.partition(b"=") for pair in result.read_bytes().split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
