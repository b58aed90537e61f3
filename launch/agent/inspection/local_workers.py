"""Ask the workers of this node what they do, and the kernel about those that do not answer.

How it works: all workers are asked at once, each through its socket (muster/worker/inspection.py).
A worker that does not answer in time is stopped, or holds its interpreter. It gets a signal at
which faulthandler writes its stacks, if the worker can run at all and has a handler for the signal.
Only descendants of this process get the signal. A worker that has ended because of another rank has
left an answer in a file. About the processes that a worker's program has started, such as those of
a data loader, only the kernel is asked.
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
from typing import cast

from launch.agent.processes import process_tree
from launch.agent.processes.process_state import catches, helpers_of, state_of
from launch.deadlines import (
    WORKER_ANSWERS_S,
    WORKER_DUMPS_STACK_S,
    WORKER_DUMPS_STACK_TICK_S,
)
from launch.nodes.channel import CHUNK_BYTES, form_of_worker, running_s
from launch.nodes.message_types import ChildReport, Report, Thread
from muster.checkout import CHECKOUT
from muster.records import fits, is_count
from muster.worker.inspection import DUMP_SIGNAL, FRAMES, THREADS
from muster.writing import parsed, read_json

ANSWER_BYTES = 3_000_000  # of one worker; a message to the leader may have a little more
MOST_CHILDREN = 32  # of one worker
NAME_CHARACTERS = 1_000  # of a file or function in a dump, of which the end is told
_dumping: dict[Path, threading.Lock] = {}  # for the file of each rank: one writes at a time
# What faulthandler writes.
THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most")
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def ask(
    folder: Path,
    ranks: Sequence[int],
    patience_s: float = WORKER_ANSWERS_S,
    **request: object,
) -> dict[int, Report]:
    """The report on each of these workers: its reply, or else what can be seen of its process."""
    if not ranks:
        return {}
    pids = pids_of(folder, ranks)
    with ThreadPoolExecutor(len(ranks)) as pool:
        replies = pool.map(lambda rank: _reply(folder, rank, request, patience_s), ranks)
    reports: dict[int, Report] = {}
    for rank, reply in zip(ranks, replies, strict=True):
        report: Report = {"rank": rank, "pid": pids.get(rank), "time_unix_s": time.time()}
        if reply is not None:
            report = reply
        elif (left := _left_answer(folder, rank)) is not None:
            report = left  # its interpreter ends, which can take a second, or has ended
            report["pid"] = pids.get(rank)
        report["answers"] = reply is not None
        report["muster"] = str(CHECKOUT)
        reports[rank] = report
    if request.get("ask") == "stacks":
        below = frozenset(process.pid for process in process_tree.descendants())

        def add_process(report: Report) -> None:
            # only the worker itself can listen at its socket
            is_own = report["answers"] or report["pid"] in below
            with _dumping.setdefault(folder / str(report["rank"]), threading.Lock()):
                _add_process(report, folder, report["pid"] if is_own else None)

        with ThreadPoolExecutor(len(ranks)) as pool:
            list(pool.map(add_process, reports.values()))
    return reports


def pids_of(folder: Path, ranks: Sequence[int]) -> dict[int, int]:
    """The process of each rank whose process still exists."""
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
) -> Report | None:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(patience_s)
            connection.connect(str(folder / f"rank_{rank:05d}.sock"))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer: Report = parsed(_line(connection, patience_s))
            if not fits(answer, form_of_worker(rank)):
                return None
            answer["pid"] = _peer(connection) or answer["pid"]
    except (OSError, ValueError):
        return None
    return answer


def _left_answer(folder: Path, rank: int) -> Report | None:
    """What a worker leaves when it ends because of another rank; None if it has left nothing."""
    answer = read_json(folder / f"rank_{rank:05d}.answer")
    return cast(Report, answer) if fits(answer, form_of_worker(rank)) else None


def _line(connection: socket.socket, patience_s: float) -> bytes:
    """The line that a worker answers.

    Raises:
        OSError: it is late, or has no end.
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
    """The process at the other end, by its number here; 0 if it has none."""
    if not hasattr(socket, "SO_PEERCRED"):
        return 0
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[0])


def _add_process(report: Report, folder: Path, pid: int | None) -> None:
    state = state_of(pid) if pid is not None else None
    if pid is None or state is None:
        report["process"] = {"status": "dead", "words": "has ended"}
        return
    report["process"] = {"status": state.status, "words": state.words}
    if not report["answers"] and not state.is_held and not report.get("threads"):
        report["threads"] = _dumped(folder / f"rank_{report['rank']:05d}.threads", pid)
        report["is_command"] = not report["threads"]
    helpers = helpers_of(pid, is_program=not report.get("is_command"))
    children = (_child(helper) for helper in helpers[:MOST_CHILDREN])
    report["process"]["children"] = [child for child in children if child is not None]


def _child(pid: int) -> ChildReport | None:
    """The state of a process that a worker's program has started; None if it has ended."""
    state = state_of(pid)
    if state is None or state.status == "zombie":
        return None
    return {"pid": pid, "words": state.words}


def _dumped(path: Path, pid: int) -> list[Thread]:
    """The stacks that faulthandler writes into this file; none if that is impossible."""
    if DUMP_SIGNAL is None or not catches(pid, DUMP_SIGNAL, now=True):
        return []
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
        return []


def threads_of(text: str) -> list[Thread]:
    """The threads in a dump, in inspection.py's form; the thread that took the signal comes first.

    A process takes a signal in its main thread, if that thread can run.
    """
    threads: list[Thread] = []
    for line in text.splitlines():
        if match := THREAD.match(line):
            is_current = match[1] == "Current thread"
            name = "main" if is_current else match["name"] or match[2]
            threads.append({"name": name, "main": is_current, "frames": []})
        elif threads and (match := FRAME.match(line)):
            number = int(match["line"]) if match["line"].isdigit() else 0
            threads[-1]["frames"].insert(
                0,  # the dump has the innermost first
                {
                    "file": match["file"][-NAME_CHARACTERS:],
                    "line": number,
                    "function": match["function"][-NAME_CHARACTERS:],
                    "text": linecache.getline(match["file"], number).strip()[:200],
                },
            )
    for thread in threads:
        del thread["frames"][:-FRAMES]
    if threads and not any(thread["main"] for thread in threads):
        threads[-1]["main"] = True  # the oldest thread is the last in a dump
    return sorted(threads, key=lambda thread: not thread["main"])[:THREADS]
