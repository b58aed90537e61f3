"""What a node's shell is told before the workers start: module load, conda activate."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from launch.agent.assignment import Assignment
from launch.agent.processes.spawn import spawn
from launch.spec import NodeCommand
from muster.errors import MusterError

LINES = 5  # of what a prologue that failed has printed


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
