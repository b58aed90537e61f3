"""The processes that an agent starts: torchrun, or workers."""

import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from configs.errors import MusterError
from launch.supervise import processes
from launch.supervise.assignment import Command


def spawn(
    command: Command, cwd: str, env: Mapping[str, str], log: Any
) -> "subprocess.Popen[bytes]":
    """Start a process of a node, in a session of its own, that dies with this one.

    Raises:
        MusterError: there is no such program.
    """
    try:
        return subprocess.Popen(
            command.argv,
            cwd=cwd,
            env={**env, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=processes.dies_with_parent(),  # noqa: PLW1509  # this process has one thread
        )
    except OSError as error:
        raise MusterError(f"{command.argv[0]}: {error.strerror}") from None


def how_it_ended(code: int, command: Command, name: str) -> str:
    """A line on a process that has failed: `torchrun on node1 was killed by SIGKILL`."""
    rank = command.env.get("RANK")
    what = "torchrun" if rank is None else f"rank {rank}"
    if code < 0:
        return f"{what} on {name} was killed by {signal.Signals(-code).name}"
    return f"{what} on {name} ended with exit code {code}"
