"""The processes that an agent starts: torchrun, or workers; their environment, and a prologue."""

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launch.agent.processes import die_with_parent
from launch.agent.stopping import STOPPABLE
from launch.nodes.this_machine import gpu_count, interface_variables
from launch.spec import Assignment, NodeCommand
from muster.errors import MusterError
from muster.run_files import CHECKPOINTS

INSPECTION = "inspection"  # below an agent's scratch folder
SHUTDOWN_S = 5
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
    if not assignment.spec.prologue:
        return env
    script, result, output = (Path(scratch, name) for name in ("prologue.sh", "result", "printed"))
    script.write_text(assignment.spec.prologue, encoding="utf-8")
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


def environment_of(
    assignment: Assignment, interface: str | None, address: str, scratch: str
) -> dict[str, str]:
    """The environment of torchrun, or of each worker, on this node.

    In `scratch` there are the folders where workers say that they can stop in order, and answer
    what they are doing.
    """
    run_dir = assignment.spec.run_dir.absolute()
    env = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_RUN_ID": assignment.spec.run_id,
        "MUSTER_ATTEMPT": str(assignment.spec.earlier_starts),
        "MUSTER_CHECKPOINTS": str(CHECKPOINTS.path(run_dir)),
        "MUSTER_STOPPABLE": str(Path(scratch, STOPPABLE)),
        "MUSTER_INSPECTION": str(Path(scratch, INSPECTION)),
        # a worker that starts as all is ending can tell that it is late
        "MUSTER_LAUNCHER": str(os.getpid()),
        **assignment.spec.secrets,
    }
    # torchrun's own patience with workers that were sent SIGTERM; how long they have is ours to say
    patience_s = math.ceil(assignment.spec.stop_grace_s) + SHUTDOWN_S
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(patience_s))
    if not gpu_count():  # else Accelerate takes every worker for a run of its own
        env.setdefault("ACCELERATE_USE_CPU", "true")
    for name, value in interface_variables(interface, address).items():
        env.setdefault(name, value)
    return env


def with_tmpdir(env: Mapping[str, str], scratch: str) -> dict[str, str]:
    """`scratch` for torchrun's temporary folders, which it never removes; the user's for workers.

    Theirs is the one that --env or a prologue has set, else the node's own; `worker_main.py` puts
    it back.
    """
    return {**env, "TMPDIR": scratch, "MUSTER_USER_TMPDIR": env.get("TMPDIR", "")}
