"""The processes that an agent starts: torchrun, or workers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.agent.processes import die_with_parent
from launch.spec import NodeCommand
from muster.errors import MusterError


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
