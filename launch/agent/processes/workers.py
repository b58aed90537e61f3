"""The processes of a run on one node: how they are started, and whether one has failed."""

import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.agent.agent_records import failed, open_log, stopped_cleanly, write_end_of
from launch.agent.processes import die_with_parent
from launch.agent.stopping import STOPPABLE
from launch.ends import StarterEnd, WorkerEnd
from launch.nodes.running_time import running_s
from launch.nodes.this_machine import (
    absent_interface,
    gpu_count,
    interface_variables,
)
from launch.runs.last_output import exit_codes_of
from launch.spec import Assignment, NodeCommand
from muster.errors import STOPPED, MusterError, UsageError, at_limit
from muster.rank_variables import without_settings_of_torchrun
from muster.run_files import CHECKPOINTS
from muster.worker import interpreter
from muster.writing import tail

# A worker that failed ends the others beside it. After so long, one of them resists, and torchrun
# would wait half a minute for it.
LOOK_S, FAILED_S = 0.2, 1.5
INSPECTION = "inspection"  # below an agent's scratch folder
SHUTDOWN_S = 5
READ_BYTES = 1_000_000  # of a log at a time
OUTPUT_BYTES = 65_536
LINES = 5  # of the output of a prologue that failed


class NoSuchProgram(MusterError):
    """A node lacks the program that is to be started."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{program}: no such program, or it may not be run")
        self.program = program  # as it was named


@dataclass(frozen=True)
class WorkloadFailure:
    """What ends a node's part of an attempt: how workers ended, or their starter."""

    worker_ends: tuple[WorkerEnd, ...]  # of those that failed, as their starter says, in order
    recorded: tuple[int, ...] = ()  # ranks that recorded a failure, while others there went on
    starter_end: StarterEnd | None = None  # its own end, after which it says nothing more
    has_no_starter: bool = False  # as of `--workers manual`: the agent saw a worker end itself


class Workload:
    """torchrun, or the workers themselves, from their start to their end.

    Raises:
        MusterError: on creation; there is no such program.
    """

    def __init__(self, assignment: Assignment, master_port: int, env: Mapping[str, str]) -> None:
        self._assignment = assignment
        self._looked = 0.0
        self._failed_at: float | None = None  # when a failure of a worker was first seen
        self._log = open_log(assignment)
        self._read_bytes, self._begun = 0, b""  # of the log, and of its unfinished line
        self._codes: dict[int, int] = {}
        self._known: dict[int, WorkerEnd] = {}
        commands = [command.decided(master_port) for command in assignment.commands]
        try:
            self._children = [spawn(command, env, self._log) for command in commands]
        except NoSuchProgram as error:
            if error.program == assignment.spec.program.python:
                raise UsageError(f"--python {error}") from None
            raise

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    @property
    def runs(self) -> bool:
        return any(child.poll() is None for child in self._children)

    def ends(self) -> list[WorkerEnd]:
        """How workers have ended so far."""
        for child, command in zip(self._children, self._assignment.commands, strict=True):
            if "RANK" in command.env and (code := child.poll()) is not None:
                self._codes[int(command.env["RANK"])] = code
        if not any("RANK" in command.env for command in self._assignment.commands):
            self._logged()
        for rank, code in self._codes.items():
            self._known.setdefault(rank, _worker_end(rank, code))
        return list(self._known.values())

    def failure(self) -> WorkloadFailure | None:
        """What has failed; None as long as nothing has."""
        for child, command in zip(self._children, self._assignment.commands, strict=True):
            code = child.poll()
            if code in (None, 0) or (code == STOPPED and self.runs):
                continue
            own = "RANK" in command.env  # otherwise it has started several
            ends = {int(command.env["RANK"]): code} if own else self._logged()
            self._write_ends(ends)
            if not stopped_cleanly(self._assignment):
                of = tuple(_worker_end(rank, number) for rank, number in ends.items())
                if own:
                    return WorkloadFailure(of, has_no_starter=True)
                is_signal = code < 0
                name = self._assignment.spec.workers
                end = StarterEnd(
                    name, None if is_signal else code, -code if is_signal else None, time.time()
                )
                return WorkloadFailure(of, starter_end=end)
        return self._failed()

    def kill_starter(self) -> None:
        """End torchrun at once, but no program around one worker: a profiler may still save."""
        for child, command in zip(self._children, self._assignment.commands, strict=True):
            if "RANK" not in command.env:
                child.kill()

    def _failed(self) -> WorkloadFailure | None:
        """The failure of workers while their starter goes on.

        torchrun logs it at once. A worker that has recorded it itself ends the others beside it,
        unless one of them resists.
        """
        now = running_s()
        if now - self._looked < LOOK_S or not self.runs:
            return None
        self._looked = now
        ends = {rank: code for rank, code in self._logged().items() if code != STOPPED}
        self._write_ends(ends)
        if ends:
            return WorkloadFailure(tuple(_worker_end(rank, code) for rank, code in ends.items()))
        gone = failed(self._assignment)
        if not gone:
            return None
        self._failed_at = self._failed_at or now
        if now - self._failed_at < FAILED_S:
            return None
        return WorkloadFailure((), recorded=tuple(gone))

    def _logged(self) -> dict[int, int]:
        """The exit codes of workers, as far as their starter has logged them."""
        ranks = self._assignment.ranks
        size_bytes = os.fstat(self._log.fileno()).st_size
        while self._read_bytes < size_bytes:
            # a write of the starter moves the position of this file, which is also its own
            new = os.pread(self._log.fileno(), READ_BYTES, self._read_bytes)
            if not new:  # cut off in the meantime
                break
            self._read_bytes += len(new)
            whole, _, begun = (self._begun + new).rpartition(b"\n")
            self._begun = begun[-READ_BYTES:]
            for local_rank, code in exit_codes_of(whole.decode(errors="replace")).items():
                if local_rank < len(ranks):  # else a program has printed such a line
                    self._codes[ranks[local_rank]] = code
        return dict(self._codes)

    def _write_ends(self, ends: Mapping[int, int]) -> None:
        """Record the exit codes of workers that could not, as C code ended them."""
        for rank, code in ends.items():
            if code > 0:
                write_end_of(self._assignment, rank, code)


def spawn(command: NodeCommand, env: Mapping[str, str], log: Any) -> "subprocess.Popen[bytes]":
    """Start a process of a node in its own session; it dies with this one.

    Raises:
        NoSuchProgram: this node has none of that name.
        MusterError: it cannot be started for another reason.
    """
    env = {**env, **command.env}
    program = command.argv[0]
    found = str(Path(command.cwd, program)) if "/" in program else program
    if shutil.which(found, path=env.get("PATH")) is None:
        raise NoSuchProgram(program)
    if why := interpreter.problem(found, env.get("PATH")):
        raise MusterError(why)
    if not Path(command.cwd).is_dir():
        where = f"{command.cwd}: no such folder on {socket.gethostname()}"
        raise MusterError(f"{where}; make it there, or leave out --no-snapshot")
    held = (sys.executable, "-ISs", die_with_parent.__file__, str(os.getpid()), *command.argv)
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
        why = at_limit(error) or error.strerror
        raise MusterError(f"{program}: {why}") from None


def _worker_end(rank: int, code: int) -> WorkerEnd:
    return WorkerEnd(rank, None if code < 0 else code, -code if code < 0 else None, time.time())


def after_prologue(
    assignment: Assignment, env: dict[str, str], scratch: str, goes_on: Callable[[], bool]
) -> dict[str, str] | None:
    """The environment that bash has after it has sourced the prologue, starting from `env`.

    `goes_on` is called until bash has ended; None where it says no. Background processes of bash
    continue during the run: their output goes to a file, so nothing waits for them.

    Raises:
        MusterError: it failed, or there is no bash; with the end of its output.
    """
    if not assignment.spec.prologue:
        return env
    script, result, output = (Path(scratch, name) for name in ("prologue.sh", "result", "printed"))
    script.write_text(assignment.spec.prologue, encoding="utf-8")
    line = '. "$1" && exec /usr/bin/env -0 > "$2"'  # a PATH that has changed may lack it
    words = ("bash", "--noprofile", "--norc", "-c", line, "prologue")
    argv = (*words, str(script), str(result))
    try:
        with output.open("wb") as file:
            process = spawn(NodeCommand(assignment.name, 0, argv, {}, str(Path.cwd())), env, file)
    except MusterError as error:
        raise MusterError(f"--prologue on {assignment.name}: {error}") from None
    while process.poll() is None:
        if not goes_on():
            return None
    if process.returncode or not result.exists():
        lines = tail(output, OUTPUT_BYTES).decode(errors="replace").splitlines()[-LINES:]
        printed = "".join(f"\n{one}" for one in lines)
        how = f"ended with exit code {process.returncode}"
        if not process.returncode:
            how = "ends the shell, so nothing is left of what it sets; leave out its exit or exec"
        raise MusterError(f"--prologue on {assignment.name} {how}{':' if printed else ''}{printed}")
    pairs = (pair.partition(b"=") for pair in result.read_bytes().split(b"\0")[:-1])
    found = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    result.unlink()  # it may hold secrets, and would stay if this process was killed
    return without_settings_of_torchrun(found)


def environment_of(
    assignment: Assignment, interface: str | None, address: str, scratch: str
) -> dict[str, str]:
    """The environment of torchrun, or of each worker, on this node.

    `scratch` holds the folders in which workers record that they can stop cleanly, and answer
    questions.
    """
    run_dir = assignment.spec.run_dir.absolute()
    env = {
        **without_settings_of_torchrun(os.environ),
        "PYTHONUNBUFFERED": "1",
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_RUN_ID": assignment.spec.run_id,
        "MUSTER_ATTEMPT": str(assignment.spec.attempt),
        "MUSTER_CHECKPOINTS": str(CHECKPOINTS.path(run_dir)),
        "MUSTER_STOPPABLE": str(Path(scratch, STOPPABLE)),
        "MUSTER_INSPECTION": str(Path(scratch, INSPECTION)),
        # torchrun never removes its temporary folders: see run_module.py
        "MUSTER_SCRATCH": scratch,
        # a worker that starts while all are ending can see that it is late
        "MUSTER_LAUNCHER": str(os.getpid()),
        # the same on all nodes; strangers who reach torch's store do not know it
        "MUSTER_STORE_SECRET": assignment.store_secret,
        **assignment.spec.secrets,
    }
    # torchrun's own grace after SIGTERM to workers; ours decides
    patience_s = math.ceil(assignment.spec.stop_grace_s) + SHUTDOWN_S
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(patience_s))
    if not gpu_count():  # otherwise Accelerate takes each worker for a run of its own
        env.setdefault("ACCELERATE_USE_CPU", "true")
    for name, value in interface_variables(interface, address).items():
        env.setdefault(name, value)
    # over ssh with no shell above it bash reads .bashrc, which may put another Python first
    if env.get("SHLVL", "0") == "0":
        env["SHLVL"] = "1"
    if "PATH" not in assignment.spec.secrets:
        env["PATH"] = _with_its_python(assignment, env.get("PATH", os.defpath))
    return env


def refuse_absent_interface(assignment: Assignment, env: Mapping[str, str]) -> None:
    """Refuse a variable by which the workers would look for a network card that is not here.

    Raises:
        MusterError: it is set, here or on all nodes; one worker alone needs no card.
    """
    import psutil  # imported here: --help and --dry-run do not need it

    own = sorted(psutil.net_if_addrs())  # also an address's own label, such as eth0:1
    is_alone = assignment.count == 1 and len(assignment.ranks) == 1
    variable = None if is_alone else absent_interface(env, own)
    if variable is not None:
        raise MusterError(
            f"{variable} is set to {env[variable]} on {assignment.name}, which has "
            f"{', '.join(own)}; set it to one of these, or leave it unset: then Muster chooses"
        )


def _with_its_python(assignment: Assignment, path: str) -> str:
    """`path` with the program's Python first, as after activating its environment.

    So a `python` in a shell script, or as the program itself, is that one. `path` may find it
    already: then the order of its folders stays as it is.
    """
    program = assignment.spec.program
    if program.python is None or "/" not in program.python:
        return path
    python = Path(assignment.cwd, program.cwd or "", program.python)
    if shutil.which(python.name, path=path) == str(python):
        return path
    return f"{python.parent}{os.pathsep}{path}"
