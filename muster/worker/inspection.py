"""Tell a worker's agent where its threads are, in which collectives, and since when.

How it works: a thread listens on a Unix socket in a folder that only the user can enter. Once a
second it notes where the main thread is, so that it can report for how long, and checks whether
NCCL is about to abort the process. The thread needs the GIL, which C code may hold. In that case
faulthandler, triggered by a signal, writes the stacks into a file beside the socket, without the
GIL. The collectives are read from torch's flight recorders, under names that torch may change;
missing ones are left out.

This file is loaded into every worker by its path. It needs only the standard library of Python 3.8
or newer.

    folder/rank_00002.sock      takes one JSON line, answers one: see `Inspector.answer`
    folder/rank_00002.json      the process: {"rank", "pid"}
    folder/rank_00002.threads   what faulthandler writes, at `DUMP_SIGNAL`
    folder/rank_00002.gave_up   exists while the worker waits for an inspection after a timeout
    folder/rank_00002.answer    its answer to "stacks", left when it ended because of another rank
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import faulthandler
import json
import linecache
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType, TracebackType

from . import flight_recorder, process, unrecorded_waits

TYPE_CHECKING = False  # without `typing`, which takes long to import
if TYPE_CHECKING:
    from typing import Any

WAKE_S = 1.0
REQUEST_BYTES = 65_536
# Upper limits: a message may have a few MB.
THREADS = 20
FRAMES = 60  # the innermost ones of each thread
# Looks at the main thread, to see whether it runs through different code.
LOOKS = 60
LOOK_S = 0.003
GIVE_UP_S = 5.0
ABORT_FORESEEN_S = 4.0  # enough for the agents to look at all ranks
END_S = 10.0  # for the last answer, on a busy machine
# By convention, real-time signals are free; schedulers use SIGUSR1 and SIGUSR2.
DUMP_SIGNAL = getattr(signal, "SIGRTMIN", 0) + 11 if hasattr(signal, "SIGRTMIN") else None


inspector: Inspector | None = None  # of this process


def start(folder: str, rank: int) -> None:
    """Start to answer in the folder that an agent has made for this."""
    global inspector
    with contextlib.suppress(OSError):  # as in a container without the folder
        inspector = Inspector(Path(folder), rank)


class Inspector:
    """The thread that answers, and what it has noted.

    Raises:
        OSError: on creation, if the folder cannot be used.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._owner = os.getpid()
        self._main = threading.main_thread().ident
        # since when the main thread has been in a frame: its position, id and function
        self._noted: dict[tuple[int, int, str], float] = {}
        self._gave_up: dict[str, Any] | None = None  # the collective that timed out
        self._init_call: dict[str, Any] | None = None  # likewise, if it was `init_process_group`
        self._answers = _thread.allocate_lock()  # held while it answers, and at the end
        stem = f"rank_{rank:05d}"
        self._gave_up_file = folder / f"{stem}.gave_up"
        self._answer_file = folder / f"{stem}.answer"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for old in (folder / f"{stem}.sock", self._answer_file):  # of an earlier program
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
        self._listener.bind(str(folder / f"{stem}.sock"))
        self._listener.listen(8)
        self._threads = (folder / f"{stem}.threads").open("ab", buffering=0)
        if DUMP_SIGNAL is not None:
            faulthandler.register(DUMP_SIGNAL, file=self._threads, all_threads=True, chain=False)
        # Python 3.12 and newer warn of a fork beside threads; ours is harmless
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        # not by `threading`: a program may wait for all threads of `threading.enumerate()`
        _thread.start_new_thread(self._run, ())
        os.register_at_fork(after_in_child=self._close_in_child)
        atexit.register(self._end)
        (folder / f"{stem}.json").write_text(json.dumps({"rank": rank, "pid": self._owner}))

    def _close_in_child(self) -> None:
        """Close the socket in a forked process: an agent asks only workers."""
        global inspector
        inspector = None
        self._answers = _thread.allocate_lock()
        self._listener.close()

    def _end(self) -> None:
        """Wait for the last answer: a thread in torch's code would abort the ending interpreter."""
        self._answers.acquire(timeout=END_S)

    def give_up(self, message: str, trace: TracebackType | None) -> None:
        """After a collective has timed out, wait until the agents have looked at all ranks."""
        self._gave_up = {"message": message[:500], "frames": _frames_of(trace)}
        self._init_call = unrecorded_waits.init_call(
            [frame for frame, _ in traceback.walk_tb(trace)]
        )
        deadline = time.monotonic() + GIVE_UP_S
        try:
            self._gave_up_file.touch()
            while self._gave_up_file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        except OSError:
            return

    def leave_answer(self, trace: TracebackType | None) -> None:
        """Write down what this process did, for agents that ask after it has ended."""
        with contextlib.suppress(Exception):  # it adds to a cause of failure, and must not be one
            answer = self.answer({"ask": "stacks"})
            answer["threads"] = [{"name": "main", "main": True, "frames": _frames_of(trace)}]
            process.write_whole(self._answer_file, json.dumps(answer).encode())

    def _foresee_abort(self) -> None:
        """Let the agents look at all ranks before NCCL aborts this one for a late collective."""
        late = flight_recorder.nearly_timed_out(ABORT_FORESEEN_S) if self._gave_up is None else None
        if late is None:
            return
        frames = [
            {
                "file": frame.f_code.co_filename,
                "line": frame.f_lineno,
                "function": frame.f_code.co_name,
            }
            for frame in _outermost_first(sys._current_frames().get(self._main or 0))
        ]
        message = (
            f"{late['operation']} timed out: NCCL ends this rank after waiting for "
            f"{late['limit_s']:g} s"
        )
        self._gave_up = {"message": message, "frames": frames}
        with contextlib.suppress(OSError):
            self._gave_up_file.touch()

    def _run(self) -> None:
        # signals are for the program's threads
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            try:
                if not select.select((self._listener.fileno(),), (), (), WAKE_S)[0]:
                    self._note()
                    self._foresee_abort()
                    continue
                connection, _ = self._listener.accept()
            except (OSError, ValueError):  # closed: the process ends
                return
            with contextlib.suppress(Exception):  # a question must not end a worker, or print
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(5.0)
        with connection, connection.makefile("rb") as lines:
            request = json.loads(lines.readline(REQUEST_BYTES))
            with self._answers:
                answer = self.answer(request)
            connection.sendall(json.dumps(answer).encode() + b"\n")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request: "stacks" or "progress"."""
        reply: dict[str, Any] = {"rank": self.rank, "pid": self._owner, "time_unix_s": time.time()}
        reply["gave_up"] = self._gave_up
        frames = _outermost_first(sys._current_frames().get(self._main or 0))
        reply["init_call"] = self._init_call or unrecorded_waits.init_call(frames)
        if request.get("ask") == "progress":
            begun = [group.get("begun", -1) for group in flight_recorder.groups().values()]
            reply["begun"] = sum(begun)
            reply["places"] = self._places() if request.get("closely") else []
        else:
            self._note()
            reply["threads"] = self._stacks()
            reply["groups"] = flight_recorder.groups()
            reply["collectives"] = flight_recorder.collectives()
        return reply

    def _note(self) -> None:
        """Note where the main thread is; an unchanged frame keeps its time."""
        frames = _outermost_first(sys._current_frames().get(self._main or 0))
        now = time.monotonic()
        marks = [(at, id(frame), frame.f_code.co_name) for at, frame in enumerate(frames)]
        self._noted = {mark: self._noted.get(mark, now) for mark in marks}

    def _places(self) -> list[int]:
        """The positions at which the main thread is seen within 0.1 to 0.2 s, each as a hash."""
        places = set()
        for _ in range(LOOKS):
            frames = _outermost_first(sys._current_frames().get(self._main or 0))
            places.add(hash(tuple((id(frame.f_code), frame.f_lasti) for frame in frames)))
            time.sleep(LOOK_S)
        return list(places)

    def _stacks(self) -> list[dict[str, Any]]:
        names = _thread_names()
        stacks = []
        for ident, frame in sys._current_frames().items():
            if ident == threading.get_ident():
                continue
            is_main = ident == self._main
            since = [*self._noted.values()] if is_main else []
            rows = []
            for position, caller in enumerate(_outermost_first(frame)):
                code = caller.f_code
                line = caller.f_lineno
                row: dict[str, Any] = {
                    "file": code.co_filename,
                    "line": line,
                    "function": getattr(code, "co_qualname", code.co_name),
                    "text": linecache.getline(code.co_filename, line or 0).strip()[:200],
                }
                if position < len(since):
                    row["for_s"] = round(time.monotonic() - since[position], 1)
                rows.append(row)
            name = "main" if is_main else names.get(ident, str(ident))
            stacks.append({"name": name, "main": is_main, "frames": rows[-FRAMES:]})
        return sorted(stacks, key=lambda thread: not thread["main"])[:THREADS]


def _frames_of(trace: TracebackType | None) -> list[dict[str, Any]]:
    return [
        {"file": frame.f_code.co_filename, "line": line, "function": frame.f_code.co_name}
        for frame, line in traceback.walk_tb(trace)
    ][-FRAMES:]


def _thread_names() -> dict[int | None, str]:
    """Names by identifier, from the program's own `threading`, not the module imported here."""
    try:
        return {thread.ident: thread.name for thread in sys.modules["threading"].enumerate()}
    except Exception:  # noqa: BLE001 (not imported, or a file of the user's)
        return {}


def _outermost_first(frame: FrameType | None) -> list[FrameType]:
    return [caller for caller, _ in traceback.walk_stack(frame)][::-1] if frame is not None else []
