"""The files of each agent in `agents/` of the run folder: who it was, and how its part ended."""

import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from launch.agent.processes.process_tree import EndedProcess
from launch.ends import End, Kind, StarterEnd, WorkerEnd, of_worker, on_leaders_clock
from launch.nodes.channel import waiting_for
from launch.runs.end_facts import OF_RANK
from launch.runs.run_record import this_process, write_end
from launch.spec import Assignment
from muster import records
from muster.errors import STOPPED
from muster.run_files import AGENT, AGENT_END, AGENT_LOG, ERRORS, RANK_END, RunFile
from muster.writing import full_disk, reserve, write_json, writing

CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Ended:
    """Why a node's part of an attempt is over; a code above 128 is that of a signal."""

    code: int
    cause: str  # done | stopped | command | peer | signal | told | launcher | refused
    message: str
    why: str = ""  # for workers that are asked to stop
    ends: tuple[End, ...] = ()  # which this agent has seen itself: of its node, or of its workers
    time_unix_s: float = field(default_factory=time.time)


def open_log(assignment: Assignment) -> IO[bytes]:
    """The log for torchrun, and for workers before they have files of their own.

    Raises:
        MusterError: it cannot be written.
    """
    path = _path(AGENT_LOG, assignment)
    with waiting_for(str(path)), writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")


def write_here(assignment: Assignment, address: str, interface: str | None) -> dict[str, Any]:
    """Record this agent; a process is identified by its pid and its start time."""
    record = {
        "index": assignment.index,
        "node": assignment.name,
        "address": address,
        "interface": interface,
        "ranks": list(assignment.ranks),
        "time_unix_s": time.time(),
        **this_process(),
    }
    path = _path(AGENT, assignment)
    with waiting_for(str(path)):
        reserve(_path(AGENT_END, assignment))
        write_json(path, record)
    return record


def stopped_cleanly(assignment: Assignment) -> str:
    """The reason that this node's workers recorded, if all of them stopped cleanly; else ""."""
    ends = _records_of(assignment)
    if any(ends.get(rank, {}).get("cause") != "stopped" for rank in assignment.ranks):
        return ""
    return str(ends[assignment.ranks[0]]["message"])


def failed(assignment: Assignment) -> list[int]:
    """The workers of this node that recorded a failure."""
    ends = _records_of(assignment)
    return [rank for rank, one in ends.items() if one.get("cause") not in ("done", "stopped")]


def write_end_of(assignment: Assignment, rank: int, code: int) -> None:
    """Record the end of a worker that could not, for example because it became another program.

    Not if it has not even begun: then the agent's log has the reason.
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
        "cause": {0: "done", STOPPED: "stopped"}.get(code, "exit"),
        "message": f"exit code {code}" if code else "",
        "traceback": "",
    }
    write_end(path, record)


def write_exit(
    assignment: Assignment,
    ended: Ended,
    clock_offset_s: float,
    processes: Sequence[EndedProcess],
    oom_kills: int,
) -> dict[str, Any]:
    """Record how this node's part ended, with each worker's own record of its end.

    `ends`: what no worker has recorded, as values.
    `oom_kills`: processes that the kernel killed meanwhile for lack of memory. `ended` has the
    workers that were alive until this agent ended them, with their states. `full`: one line, where
    the run folder's disk is full.
    """
    path = _path(AGENT_END, assignment)
    with waiting_for(str(path)):
        full = full_disk(path) if ended.cause != "done" else ""
    for rank in assignment.ranks if ended.cause == "done" else ():
        write_end_of(assignment, rank, 0)
    record = {
        "index": assignment.index,
        "node": assignment.name,
        "host": socket.gethostname(),
        "code": ended.code,
        "cause": ended.cause,
        "message": ended.message,
        "ends": [end.to_json() for end in ended.ends if not end.is_recorded],
        "noticed_unix_s": ended.time_unix_s,
        "time_unix_s": time.time(),
        "clock_offset_s": clock_offset_s,  # to add, to have the leader's clock
        "ranks": list(assignment.ranks),
        "oom_kills": oom_kills,
        "full": full,
        "workers": {} if full else _records_of(assignment),  # which may be long
        "ended": {one.rank: asdict(one) for one in processes if one.rank is not None},
    }
    with waiting_for(str(path)):
        write_end(path, record)
    return record


def ends_of_workers(
    assignment: Assignment, processes: Sequence[WorkerEnd], clock_offset_s: float
) -> list[End]:
    """How workers of this node have ended, by their own records, and as their starter says."""
    of_rank = {process.rank: process for process in processes}
    ends = []
    for rank in assignment.ranks:
        path = RANK_END.path(assignment.spec.run_dir, rank=rank)
        with waiting_for(str(path)):
            record = records.read(RANK_END, path, *OF_RANK)
        end = of_worker(assignment.name, rank, record, of_rank.get(rank), clock_offset_s)
        if end is not None:
            ends.append(end)
    return ends


def ends_of_starter(
    assignment: Assignment, starter: StarterEnd, workers: Sequence[End], clock_offset_s: float
) -> list[End]:
    """What the end of the process says that had started these workers, if they do not say more."""
    signalled = starter.signal is not None
    if not signalled and any(end.kind not in (Kind.DONE, Kind.STOPPED) for end in workers):
        return []
    run_dir = assignment.spec.run_dir
    begun = any(ERRORS.path(run_dir, rank=rank).exists() for rank in assignment.ranks)
    kind = Kind.STARTER if begun else Kind.NOT_STARTED
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


def ends_of_processes(assignment: Assignment, processes: Sequence[EndedProcess]) -> list[End]:
    """The workers that this agent had to end, and that have recorded nothing of it."""
    ends = []
    for process in processes:
        if process.rank in assignment.ranks:
            state = process.state or "hung"
            if process.survives:
                state = f"{state} and could not be ended (pid {process.pid})"
            end = End(Kind.ENDED, assignment.name, 0.0, process.rank, message=state)
            path = RANK_END.path(assignment.spec.run_dir, rank=process.rank)
            ends += [] if path.exists() else [end]
    return ends


def _records_of(assignment: Assignment) -> dict[int, dict[str, Any]]:
    known = {}
    for rank in assignment.ranks:
        path = RANK_END.path(assignment.spec.run_dir, rank=rank)
        with waiting_for(str(path)):
            known[rank] = records.read(RANK_END, path, "cause", "message")
    return {rank: one for rank, one in known.items() if one is not None}


def _path(file: RunFile, assignment: Assignment) -> Path:
    return file.path(assignment.spec.run_dir, node=assignment.index)


def oom_kills(root: Path = CGROUPS, own: Path = OWN) -> int:
    """How many processes of this cgroup the kernel has killed for lack of memory; 0: unknown.

    A scheduler gives each job a cgroup with the memory it asked for. Version 2 counts in
    `memory.events`, version 1 in `memory.oom_control`, both on a line `oom_kill N`.
    """
    counted = ""
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            counted += _text(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            counted += _text(root / "memory" / path.lstrip("/") / "memory.oom_control")
    found = re.search(r"^oom_kill (\d+)$", counted, re.MULTILINE)
    return int(found[1]) if found else 0


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""
