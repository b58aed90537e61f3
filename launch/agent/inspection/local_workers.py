"""Ask this node's workers what they are doing, and the kernel about workers that do not answer.

How it works: all workers are asked at the same time, each through its socket
(muster/worker/inspection.py). If a worker does not answer in time, it is stopped, or something
holds its GIL. It gets a signal on which faulthandler writes its stacks, if the worker can run at
all and has a handler for the signal. Only descendants of this process get the signal. A worker that
has ended because of another rank has left an answer in a file. For processes that a worker's
program has started, such as data loader processes, only the kernel is asked.
"""

import json
import linecache
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import asdict, replace

from launch.agent.processes import process_tree
from launch.agent.processes.process_state import catches, helpers_of, state_of
from launch.deadlines import (
    WORKER_ANSWERS_S,
    WORKER_DUMPS_STACK_S,
    WORKER_DUMPS_STACK_TICK_S,
)
from launch.nodes.channel import CHUNK_BYTES, running_s
from launch.nodes.messages import (
    ChildReport,
    Frame,
    ProcessReport,
    Report,
    Thread,
    WorkerAnswer,
)
from muster.checkout import CHECKOUT
from muster.records import is_count
from muster.worker.inspection import DUMP_SIGNAL, FRAMES, THREADS
from muster.writing import parsed, read_json

ANSWER_BYTES = 3_000_000  # of one worker; a message to the leader may be a little longer
MOST_CHILDREN = 32  # of one worker
NAME_CHARACTERS = 1_000  # of a thread, file or function in a dump; longer names keep only their end
_dumping: dict[Path, threading.Lock] = {}  # one for each rank's file: one dump at a time
# The lines that faulthandler writes.
THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most")
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)$')


def ask(
    folder: Path,
    ranks: Sequence[int],
    patience_s: float = WORKER_ANSWERS_S,
    **request: object,
) -> dict[int, Report]:
    """Get a report on each of these workers: its reply, or else what can be seen of its process."""
    if not ranks:
        return {}
    pids = pids_of(folder, ranks)
    with ThreadPoolExecutor(len(ranks)) as pool:
        replies = pool.map(lambda rank: _reply(folder, rank, request, patience_s), ranks)
    reports: dict[int, Report] = {}
    for rank, reply in zip(ranks, replies, strict=True):
        # an interpreter that is shutting down, which can take a second, has left its answer
        answer = reply or _left_answer(folder, rank)
        if answer is None:
            answer = WorkerAnswer(rank=rank, time_unix_s=time.time())
        if reply is None:
            answer = replace(answer, pid=pids.get(rank))
        reports[rank] = Report(**asdict(answer), answers=reply is not None, muster=str(CHECKOUT))
    if request.get("ask") != "stacks":
        return reports
    below = frozenset(process.pid for process in process_tree.descendants())

    def with_process(report: Report) -> Report:
        # only the worker itself can listen on its socket
        is_own = report.answers or report.pid in below
        with _dumping.setdefault(folder / str(report.rank), threading.Lock()):
            return _with_process(report, folder, report.pid if is_own else None)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return dict(zip(reports, pool.map(with_process, reports.values()), strict=True))


def pids_of(folder: Path, ranks: Sequence[int]) -> dict[int, int]:
    """The pid of each rank whose process still exists."""
    pids = {}
    for rank in ranks:  # the program itself, even if another command has started it
        raw = read_json(folder / f"rank_{rank:05d}.json", "pid")
        is_known = raw is not None and is_count(raw["pid"])
        state = state_of(raw["pid"]) if raw is not None and is_known else None
        if state is not None and state.status != "zombie":
            pids[rank] = state.pid
    if len(pids) < len(ranks):  # the others are commands, or programs that have not begun
        for process in process_tree.descendants():
            if (other := process_tree.rank_of(process)) is not None and other in ranks:
                pids.setdefault(other, process.pid)
    return pids


def _reply(
    folder: Path, rank: int, request: Mapping[str, object], patience_s: float
) -> WorkerAnswer | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(folder / f"rank_{rank:05d}.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = _answer_in(parsed(_line(connection, patience_s)), rank)
            pid = _peer(connection)
    except (OSError, ValueError):
        return None
    return replace(answer, pid=pid) if answer is not None and pid else answer


def _left_answer(folder: Path, rank: int) -> WorkerAnswer | None:
    """The answer that a worker left when it ended because of another rank, or None."""
    return _answer_in(read_json(folder / f"rank_{rank:05d}.answer"), rank)


def _answer_in(value: object, rank: int) -> WorkerAnswer | None:
    """The answer of this rank's worker; None if `value` is not one.

    The JSON is decoded by Python, which also accepts file names that are not valid UTF-8.
    """
    try:
        answer = msgspec.convert(value, WorkerAnswer)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return None
    return answer if answer.rank == rank else None


def _line(connection: socket.socket, patience_s: float) -> bytes:
    """Read the line that a worker sends as its answer.

    Raises:
        OSError: it is late, or too long.
    """
    deadline = running_s() + patience_s
    line = b""
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, deadline - running_s()))
        new = connection.recv(CHUNK_BYTES)
        if not new:
            return line
        line += new
        if len(line) > ANSWER_BYTES or running_s() > deadline:
            raise TimeoutError
    return line


def _peer(connection: socket.socket) -> int:
    """The pid, as seen here, of the process at the other end; 0 if it is unknown."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[0])


def _with_process(report: Report, folder: Path, pid: int | None) -> Report:
    """Add to a report what can be seen of the worker's process and of the processes it started."""
    state = state_of(pid) if pid is not None else None
    if pid is None or state is None:
        return replace(report, process=ProcessReport("dead", "has ended"))
    if not report.answers and not state.is_held and not report.threads:
        threads = _dumped(folder / f"rank_{report.rank:05d}.threads", pid)
        report = replace(report, threads=threads, is_command=not threads)
    helpers = helpers_of(pid, is_program=not report.is_command)[:MOST_CHILDREN]
    children = tuple(child for child in map(_child, helpers) if child is not None)
    return replace(report, process=ProcessReport(state.status, state.words, children))


def _child(pid: int) -> ChildReport | None:
    """The state of a process that a worker's program has started; None if it has ended."""
    state = state_of(pid)
    if state is None or state.status == "zombie":
        return None
    return ChildReport(pid, state.words)


def _dumped(path: Path, pid: int) -> tuple[Thread, ...]:
    """The stacks that faulthandler writes into this file; none if that is impossible."""
    if DUMP_SIGNAL is None or not catches(pid, DUMP_SIGNAL, now=True):
        return ()
    try:
        with path.open("rb") as file:  # its worker may remove it
            before = file.seek(0, os.SEEK_END)
            os.kill(pid, DUMP_SIGNAL)
            deadline = running_s() + WORKER_DUMPS_STACK_S
            size = before
            while running_s() < deadline:
                time.sleep(WORKER_DUMPS_STACK_TICK_S)
                now = os.fstat(file.fileno()).st_size
                if now > before and now == size:
                    break
                size = now
            file.seek(before)
            return threads_of(file.read(ANSWER_BYTES).decode(errors="replace"))
    except OSError:
        return ()


def threads_of(text: str) -> tuple[Thread, ...]:
    """Parse the threads of a dump into inspection.py's form; the one that took the signal is first.

    A process takes a signal in its main thread, if that thread can run.
    """
    found: list[tuple[str, bool, list[Frame]]] = []
    for line in text.splitlines():
        if match := THREAD.match(line):
            is_current = match[1] == "Current thread"
            name = "main" if is_current else match["name"] or match[2]
            found.append((name[-NAME_CHARACTERS:], is_current, []))
        elif found and (match := FRAME.match(line)):
            file = match["file"][-NAME_CHARACTERS:]
            number = int(match["line"]) if match["line"].isdigit() else 0
            source = linecache.getline(match["file"], number).strip()[:200]
            frame = Frame(file, number, match["function"][-NAME_CHARACTERS:], source)
            found[-1][2].insert(0, frame)  # the dump lists the innermost frame first
    if found and not any(is_current for _, is_current, _ in found):
        found[-1] = (found[-1][0], True, found[-1][2])  # a dump lists the oldest thread last
    threads = [Thread(name, is_main, tuple(frames[-FRAMES:])) for name, is_main, frames in found]
    return tuple(sorted(threads, key=lambda thread: not thread.main)[:THREADS])
