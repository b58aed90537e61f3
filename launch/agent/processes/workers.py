"""The processes of a run on one node: how they are started, and how its workers have ended."""

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from configs.settings.launch import without_settings_of_torchrun
from launch.agent.processes.process_tree import TerminatedProcess
from launch.agent.stopping import STOPPABLE
from launch.deadlines import (
    STARTER_ENDS_OTHER_WORKERS_S,
    STARTER_LOG_READ_EVERY_S,
    STARTER_OUTWAITS_GRACE_S,
)
from launch.ends import End, Kind, StarterEnd, WorkerEnd, end_of_worker, on_leaders_clock
from launch.nodes.channel import running_s, waiting_for
from launch.nodes.scheduler import SchedulerJob
from launch.nodes.this_machine import (
    absent_interface,
    card_names,
    gpu_count,
    interface_variables,
)
from launch.runs.end_facts import RANK_END_FIELDS
from launch.runs.last_output import lost_peer_in
from launch.runs.run_record import write_end
from launch.spec import PRELOAD, RUN_MODULE, WORKER_MAIN, Assignment, NodeCommand
from launch.starters.base import NodeStart, StartedProcess, WarmInterpreter
from muster import records
from muster.errors import STOPPED, MusterError, UsageError, at_limit
from muster.run_files import AGENT_LOG, CHECKPOINTS, ERRORS, RANK_END
from muster.worker.process import NOTICE_SIGNALS, ending_with
from muster.writing import tail, writing

# Scripts that arrange to end with their agent.
ENDS_WITH_AGENT = tuple(f"/{path}" for path in (RUN_MODULE, WORKER_MAIN, PRELOAD))
INSPECTION = "inspection"  # below an agent's scratch folder
OUTPUT_BYTES = 65_536
LINES = 5  # of a failed prologue's output
TASK_VARIABLES = "MUSTER_TASK_VARIABLES"  # for worker_main.py and preload.py


class NoSuchProgram(MusterError):
    """A node lacks the program that is to be started."""

    def __init__(self, program: str) -> None:
        super().__init__(f"{program}: no such program, or not executable")
        self.program = program  # as the command names it


@dataclass(frozen=True)
class WorkloadFailure:
    """A worker has failed, as `Workload.ends` or its own record shows; or the starter has."""

    starter_end: StarterEnd | None = None  # if the starter has ended, and so reports nothing more


class Workload:
    """The processes of one attempt on a node, and what is known about their ends."""

    def __init__(
        self,
        assignment: Assignment,
        processes: Sequence[StartedProcess],
        log: IO[bytes] | None = None,
    ) -> None:
        self._assignment = assignment
        self._processes = processes
        self._log = log
        self._ends: dict[int, WorkerEnd] = {}
        self._looked = 0.0
        self._failed_at: float | None = None  # when a failure of a worker was first seen

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def runs(self) -> bool:
        return any(process.code() is None for process in self._processes)

    @property
    def may_have_workers(self) -> bool:
        return any(process.may_have_workers() for process in self._processes)

    def ends(self) -> list[WorkerEnd]:
        """How workers have ended so far, in the order in which their starters reported it."""
        for process in self._processes:
            for end in process.new_ends():
                self._ends.setdefault(end.rank, end)
        return list(self._ends.values())

    def failure(self) -> WorkloadFailure | None:
        """The failure of a worker or starter; None as long as nothing has failed."""
        ends = self.ends()
        failure = self._failure_of_process(ends)
        if failure is None and self.runs:
            failure = self._reported_failure(ends) or self._recorded_failure()
        return failure

    def close(self) -> None:
        """Close the log, and note the exit codes of processes that psutil has waited for."""
        for process in self._processes:
            process.code()
        if self._log is not None:
            self._log.close()

    def kill_starter(self) -> None:
        """End torchrun at once, but no program around a worker: a profiler may still be saving."""
        for process in self._processes:
            process.kill()

    def _failure_of_process(self, ends: Sequence[WorkerEnd]) -> WorkloadFailure | None:
        """The failure of a process that has ended: of a worker, or of the starter of all workers.

        A clean stop is not a failure while other processes may still stop cleanly as well.
        """
        for process in self._processes:
            code = process.code()
            if code in (None, 0) or (code == STOPPED and self.runs):
                continue
            rank = process.command.rank
            is_starter = rank is None
            self._write_ends(end for end in ends if is_starter or end.rank == rank)
            if not stopped_cleanly(self._assignment):
                return WorkloadFailure(process.end() if is_starter else None)
        return None

    def _reported_failure(self, ends: Sequence[WorkerEnd]) -> WorkloadFailure | None:
        """The failure of workers that their starter has reported while others go on."""
        failed = [end for end in ends if end.exit_code not in (0, STOPPED)]
        self._write_ends(failed)
        return WorkloadFailure() if failed else None

    def _recorded_failure(self) -> WorkloadFailure | None:
        """The failure of a worker that only its own record shows, while others go on.

        The starter first gets a moment to end the other workers. It takes longer if one of them
        resists.
        """
        now = running_s()
        if now - self._looked < STARTER_LOG_READ_EVERY_S:
            return None
        self._looked = now
        if not failed_ranks(self._assignment):
            return None
        self._failed_at = self._failed_at or now
        if now - self._failed_at < STARTER_ENDS_OTHER_WORKERS_S:
            return None
        return WorkloadFailure()

    def _write_ends(self, ends: Iterable[WorkerEnd]) -> None:
        """Record the ends of workers that could not do so themselves, as after an exit in C code.

        Nothing is recorded for a worker that a signal has ended, unless it had lost another worker.
        """
        for end in ends:
            if end.exit_code:
                write_end_of(self._assignment, end.rank, end.exit_code)
            elif end.signal == signal.SIGABRT:
                errors = ERRORS.path(self._assignment.spec.run_dir, rank=end.rank)
                if why := lost_peer_in(errors):
                    code = 128 + signal.SIGABRT
                    write_end_of(self._assignment, end.rank, code, "lost_peer", why)


def start_workload(
    assignment: Assignment, master_port: int, env: Mapping[str, str], warm: WarmInterpreter
) -> Workload:
    """Start the processes of one attempt on this node.

    Raises:
        MusterError: there is no such program, or it cannot be started.
    """
    log = open_log(assignment)
    node = NodeStart(assignment.ranks, env, log, spawn)
    commands = [command.with_port(master_port) for command in assignment.commands]
    try:
        processes = [warm.start(command, node) for command in commands]
    except MusterError as error:
        log.close()
        if isinstance(error, NoSuchProgram) and error.program == assignment.spec.program.python:
            raise UsageError(f"--python {error}") from None
        raise
    return Workload(assignment, processes, log)


def spawn(
    command: NodeCommand,
    env: Mapping[str, str],
    log: IO[bytes],
    *,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start a process of a node in its own session; it dies with this process.

    Raises:
        NoSuchProgram: this node has no program of that name.
        MusterError: it cannot be started for another reason.
    """
    env = {**env, **command.env}
    program = command.argv[0]
    path = str(Path(command.cwd, program)) if "/" in program else program
    place = shutil.which(path, path=env.get("PATH"))
    if place is None:
        raise NoSuchProgram(program)
    argv = command.argv
    ends_itself = any(word.endswith(ENDS_WITH_AGENT) for word in argv[1:2])
    if ends_itself and program != sys.executable:
        # a script may stay above the Python that it starts, and would not end by itself
        ends_itself = not _is_script(place)
    if not Path(command.cwd).is_dir():
        where = f"{command.cwd}: no such folder on {socket.gethostname()}"
        raise MusterError(f"{where}\ntip: make it there, or leave out --no-snapshot")
    if not ends_itself:
        argv = ending_with(os.getpid(), argv)
    # the child ignores these signals soon; until then they are blocked, see `end_with_agent`
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICE_SIGNALS)
    try:
        return subprocess.Popen(
            argv,
            cwd=command.cwd,
            env=env,
            stdin=stdin,
            stdout=log,
            stderr=log,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except OSError as error:
        why = at_limit(error) or error.strerror
        raise MusterError(f"{program}: {why}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _is_script(place: str) -> bool:
    """Whether a program is a script with a `#!` line."""
    try:
        with Path(place).open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def after_prologue(
    assignment: Assignment, env: dict[str, str], scratch: str, wait: Callable[[], None]
) -> dict[str, str]:
    """Source the prologue in bash, starting from `env`; return the environment that results.

    `wait` is called until bash has ended. Background processes of bash continue during the run.
    Their output goes to a file, so nothing waits for it.

    Raises:
        MusterError: the prologue failed, with the end of its output; or there is no bash.
    """
    if not assignment.spec.prologue:
        return env
    script = Path(scratch, "prologue.sh")
    result = Path(scratch, "result")
    output = Path(scratch, "printed")
    script.write_text(assignment.spec.prologue, encoding="utf-8")
    line = '. "$1" && exec /usr/bin/env -0 > "$2"'  # a changed PATH may lack its folder
    words = ("bash", "--noprofile", "--norc", "-c", line, "prologue")
    argv = (*words, str(script), str(result))
    try:
        with output.open("wb") as file:
            process = spawn(NodeCommand(assignment.name, 0, argv, {}, str(Path.cwd())), env, file)
    except MusterError as error:
        raise MusterError(f"--prologue on {assignment.name}: {error}") from None
    while process.poll() is None:
        wait()
    if process.returncode or not result.exists():
        lines = tail(output, OUTPUT_BYTES).decode(errors="replace").splitlines()[-LINES:]
        printed = "".join(f"\n{line}" for line in lines)
        how = f"ended with exit code {process.returncode}"
        if not process.returncode:
            how = "ends the shell, so what it sets is lost; remove exit or exec from it"
        raise MusterError(f"--prologue on {assignment.name} {how}{':' if printed else ''}{printed}")
    pairs = (pair.partition(b"=") for pair in result.read_bytes().split(b"\0")[:-1])
    variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    result.unlink()  # it may contain secrets, and would be left if this process were killed
    return without_settings_of_torchrun(variables)


def environment_of(
    assignment: Assignment,
    interface: str | None,
    address: str,
    scratch: str,
    job: type[SchedulerJob] | None = None,
) -> dict[str, str]:
    """The environment of torchrun, or of each worker, on this node.

    `scratch` contains the folders in which workers record that they can stop cleanly, and answer
    questions. `job`: the job class of the scheduler that has started this agent or its leader.
    """
    run_dir = assignment.spec.run_dir.absolute()
    env = {
        **without_settings_of_torchrun(os.environ),
        **_variables_of(job, assignment),
        "PYTHONUNBUFFERED": "1",
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_RUN_ID": assignment.spec.run_id,
        "MUSTER_ATTEMPT": str(assignment.spec.attempt),
        "MUSTER_CHECKPOINTS": str(CHECKPOINTS.path(run_dir)),
        "MUSTER_STOPPABLE": str(Path(scratch, STOPPABLE)),
        "MUSTER_INSPECTION": str(Path(scratch, INSPECTION)),
        # torchrun never removes its temporary folders: see run_module.py
        "MUSTER_SCRATCH": scratch,
        # a worker that starts while all others are ending can see that it is late
        "MUSTER_AGENT_PID": str(os.getpid()),
        # the same on all nodes; other programs that reach torch's store do not know it
        "MUSTER_STORE_SECRET": assignment.store_secret,
        **({"MUSTER_DATA": assignment.data} if assignment.data else {}),
        **assignment.spec.secrets,
    }
    # torchrun's own limit after it sends SIGTERM to workers; it is longer, so that ours applies
    patience_s = math.ceil(assignment.spec.stop_grace_s) + STARTER_OUTWAITS_GRACE_S
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(patience_s))
    if not gpu_count():  # else Accelerate takes each worker for a separate run
        env.setdefault("ACCELERATE_USE_CPU", "true")
    for name, value in interface_variables(interface, address).items():
        env.setdefault(name, value)
    # bash reads .bashrc if it is started through ssh and no shell is above it, and that file may
    # put another Python first
    if env.get("SHLVL", "0") == "0":
        env["SHLVL"] = "1"
    if "PATH" not in assignment.spec.secrets:
        env["PATH"] = _with_its_python(assignment, env.get("PATH", os.defpath))
    return env


def _variables_of(job: type[SchedulerJob] | None, assignment: Assignment) -> dict[str, str]:
    """The scheduler's variables, and one more that lists their names for the workers.

    `worker_main.py` uses these names to set the numbers of each worker.
    """
    found = job.worker_variables(assignment, os.environ) if job else {}
    return (
        {**found, TASK_VARIABLES: " ".join([*job.rank_variables, *found])} if job and found else {}
    )


def refuse_absent_interface(assignment: Assignment, env: Mapping[str, str]) -> None:
    """Refuse a variable that makes workers look for a network card that this node does not have.

    On several machines a loopback interface does not count as a card.

    Raises:
        MusterError: the variable is set, here or on all nodes; a single worker needs no card.
    """
    node_0 = assignment.coordinator_address
    on_several_machines = assignment.count > 1 and node_0 != "::1" and node_0[:4] != "127."
    own = card_names(reach_others=on_several_machines)
    is_alone = assignment.count == 1 and len(assignment.ranks) == 1
    variable = None if is_alone else absent_interface(env, own)
    if variable is not None:
        cards = ", ".join(own) or "no network card"
        use = " to reach other machines" if on_several_machines else ""
        raise MusterError(
            f"{variable} is set to {env[variable]} on {assignment.name}, which has {cards}{use}\n"
            "tip: set it to one of these, or leave it unset for Muster to choose"
        )


def _with_its_python(assignment: Assignment, path: str) -> str:
    """`path` with the program's Python first, as after activating its environment.

    So `python` in a shell script, or as the program itself, is the program's Python. If `path`
    already leads to this Python, the order of its folders is not changed.
    """
    program = assignment.spec.program
    if program.python is None or "/" not in program.python:
        return path
    python = Path(assignment.cwd, program.cwd or "", program.python)
    if shutil.which(python.name, path=path) == str(python):
        return path
    return f"{python.parent}{os.pathsep}{path}"


def open_log(assignment: Assignment) -> IO[bytes]:
    """Open the log for torchrun, and for workers before they have files of their own.

    Raises:
        MusterError: it cannot be written.
    """
    path = AGENT_LOG.path(assignment.spec.run_dir, node=assignment.index)
    with waiting_for(str(path)), writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def stopped_cleanly(assignment: Assignment) -> str:
    """The reason that this node's workers recorded, if all of them stopped cleanly; else ""."""
    ends = records_of(assignment)
    if any(ends.get(rank, {}).get("cause") != "stopped" for rank in assignment.ranks):
        return ""
    return str(ends[assignment.ranks[0]]["message"])


def failed_ranks(assignment: Assignment) -> list[int]:
    """The ranks of this node whose workers have recorded a failure."""
    ends = records_of(assignment)
    return [rank for rank, end in ends.items() if end.get("cause") not in ("done", "stopped")]


def write_end_of(
    assignment: Assignment, rank: int, code: int, cause: str = "", message: str = ""
) -> None:
    """Record the end of a worker that could not do so itself, as after it became another program.

    Nothing is recorded for a worker that has not begun, since the agent's log has the reason then.
    """
    run_dir = assignment.spec.run_dir
    path = RANK_END.path(run_dir, rank=rank)
    if path.exists() or not ERRORS.path(run_dir, rank=rank).exists():
        return
    record = {
        "rank": rank,
        "host": socket.gethostname(),
        "pid": 0,  # no longer known
        "time_unix_s": time.time(),
        "code": code,
        "cause": cause or {0: "done", STOPPED: "stopped"}.get(code, "exit"),
        "message": message or (f"exit code {code}" if code else ""),
        "traceback": "",
    }
    write_end(path, record)


def ends_of_workers(
    assignment: Assignment, processes: Sequence[WorkerEnd], clock_offset_s: float
) -> list[End]:
    """How workers of this node have ended, from their own records and their starter's reports."""
    of_rank = {process.rank: process for process in processes}
    ends = []
    for rank in assignment.ranks:
        path = RANK_END.path(assignment.spec.run_dir, rank=rank)
        with waiting_for(str(path)):
            record = records.read(RANK_END, path, *RANK_END_FIELDS)
        end = end_of_worker(assignment.name, rank, record, of_rank.get(rank), clock_offset_s)
        if end is not None:
            ends.append(end)
    return ends


def ends_of_starter(
    assignment: Assignment, starter: StarterEnd, workers: Sequence[End], clock_offset_s: float
) -> list[End]:
    """The end of these workers' starter, if their own ends do not explain it; else nothing."""
    signalled = starter.signal is not None
    if not signalled and any(end.is_failure for end in workers):
        return []
    run_dir = assignment.spec.run_dir
    begun = any(ERRORS.path(run_dir, rank=rank).exists() for rank in assignment.ranks)
    kind = Kind.FAILED if begun else Kind.NOT_STARTED
    end = End(
        Kind.KILLED if signalled else kind,
        assignment.name,
        on_leaders_clock(starter.time_unix_s, clock_offset_s),
        code=1 if starter.exit_code is None else starter.exit_code % 256,
        signal=starter.signal,
        message=starter.starter,
        ranks=assignment.ranks,
    )
    return [end]


def ends_of_processes(assignment: Assignment, processes: Sequence[TerminatedProcess]) -> list[End]:
    """The ends of workers that this agent had to end, and that have not recorded their end."""
    ends = []
    for process in processes:
        if process.rank in assignment.ranks:
            state = process.state or "hung"
            if process.survives:
                state = f"{state} and could not be ended (pid {process.pid})"
            end = End(Kind.UNRECORDED, assignment.name, 0.0, process.rank, message=state)
            path = RANK_END.path(assignment.spec.run_dir, rank=process.rank)
            ends += [] if path.exists() else [end]
    return ends


def records_of(assignment: Assignment) -> dict[int, dict[str, object]]:
    """The workers' own records of their ends, by rank."""
    of_rank = {}
    for rank in assignment.ranks:
        path = RANK_END.path(assignment.spec.run_dir, rank=rank)
        with waiting_for(str(path)):
            of_rank[rank] = records.read(RANK_END, path, "cause", "message")
    return {rank: record for rank, record in of_rank.items() if record is not None}
