"""Agents that a launcher starts, and their messages, also among agents: JSON objects, one a line.

Neither side ever blocks: what cannot be written yet waits in memory, and what has come is taken
when it is asked for, so much at a time. Nothing that comes is run or unpickled. Any thread may
send; one receives.
"""

import errno
import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from configs.plugins import REPOSITORY
from muster.run_files import AGENT_ERRORS
from muster.writing import writing

# A login shell may print what it likes before the first of ours.
MARK = b"muster:"
LINE_BYTES = 4_000_000
CHUNK_BYTES = 65_536
RECEIVE_BYTES = 1_048_576  # at a time: whoever sends without end does not hold this process
TICK_S = 0.05
BEAT_S = 1.0
# Of one that is not heard for so long nothing more is expected: on a link that is down nothing
# says so.
SILENT_S = 15.0


class Channel:
    """Two file descriptors, or a socket's one given twice; owned, and closed with the channel."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._lock = threading.RLock()  # around all that writes, and around closing
        self._in = b""
        self.allowance_bytes: int | None = None  # that may still come; None: any number
        self._out = bytearray()
        self._put_back: list[dict[str, Any]] = []
        self.noise: list[str] = []  # lines that were not ours: why a remote shell failed, say
        self.ended = False  # the other side has closed, or died
        self.has_message = False  # one of ours has come
        self.heard = time.monotonic()  # when anything last came
        self._offset_s = -math.inf
        for descriptor in {reads, writes}:
            os.set_blocking(descriptor, False)

    @property
    def waiting_bytes(self) -> int:
        """What the other side has yet to take."""
        return len(self._out)

    @property
    def silent_s(self) -> float:
        """Since when nothing has come."""
        return time.monotonic() - self.heard

    @property
    def clock_offset_s(self) -> float:
        """To add to this side's clock to have the other's, by the beat that was the quickest."""
        return self._offset_s if self._offset_s > -math.inf else 0.0

    def send(self, **message: Any) -> None:
        self.write(MARK + json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send what is no message of ours, such as a program to a shell."""
        with self._lock:
            self._out += data
            self.flush()

    def beat(self) -> None:
        """Say that this process lives, where nothing else that waits to be taken will say so."""
        with self._lock:
            self.flush()
            if not self._out and not self.ended:
                self.send(beat=time.time())

    def flush(self) -> None:
        """Write as much as the other side takes now."""
        with self._lock:
            while self._out and not self.ended:
                try:
                    written = os.write(self._writes, self._out[:CHUNK_BYTES])
                except BlockingIOError:
                    return
                except OSError:  # a broken pipe, a reset: what still comes in is read all the same
                    self._out.clear()
                    return
                del self._out[:written]

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have come; `ended` is true once there will be no more."""
        self.flush()
        left = RECEIVE_BYTES
        while not self.ended and left > 0:
            try:
                new = os.read(self._reads, min(CHUNK_BYTES, left))
            except BlockingIOError:
                break
            except OSError as error:
                self.ended = True
                if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.EIO, errno.ETIMEDOUT):
                    self.noise.append(os.strerror(error.errno or 0))
                break
            if not new:
                self.ended = True
                break
            self.heard = time.monotonic()
            left -= len(new)
            self._in += new
            if self.allowance_bytes is not None:
                self.allowance_bytes -= len(new)
                if self.allowance_bytes < 0:
                    self.ended, self._in = True, b""
                    break
            if len(self._in) > LINE_BYTES and b"\n" not in self._in:
                self.ended = True  # no message of ours is that long
        *lines, self._in = self._in.split(b"\n")
        first, self._put_back = self._put_back, []
        return first + [message for line in lines if (message := self._read(line)) is not None]

    def first(self, *names: str, patience_s: float = SILENT_S) -> dict[str, Any] | None:
        """Wait for a message that has one of `names`; None: the other side is gone, or silent."""
        while not self.ended and self.silent_s <= patience_s:
            messages = self.receive()
            for at, message in enumerate(messages, start=1):
                if message.keys() & set(names):
                    self.put_back(messages[at:])
                    return message
            time.sleep(TICK_S)
        return None

    def put_back(self, messages: list[dict[str, Any]]) -> None:
        """Have the next `receive` give these first: they are for whoever takes over from here."""
        self._put_back = messages

    def _read(self, line: bytes) -> dict[str, Any] | None:
        if line.startswith(MARK):
            try:
                message = json.loads(line.removeprefix(MARK))
            except (ValueError, RecursionError):  # brackets within brackets within brackets
                message = None
            if isinstance(message, dict):
                self.has_message = True
                if isinstance(sent := message.get("beat"), float):
                    self._offset_s = max(self._offset_s, sent - time.time())
                return message
        if line.strip() and len(self.noise) < 100:
            self.noise.append(line.decode(errors="replace").rstrip())
        return None

    def drain(self, timeout_s: float) -> None:
        """Stay until the other side has taken all that was sent, and no longer than `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.waiting_bytes and not self.ended and time.monotonic() < deadline:
            time.sleep(TICK_S)
            self.receive()

    def close(self) -> None:
        """Close both directions; what was not taken yet is lost."""
        with self._lock:  # a number that is free again may soon be that of another file
            self.ended = True
            for descriptor in {self._reads, self._writes}:
                try:
                    os.close(descriptor)
                except OSError:
                    continue
            self._reads = self._writes = -1


class Heartbeat:
    """Say every second, from a thread of its own, that this process lives; on each channel given.

    A slow disk, a slow terminal or a slow file server hold up the thread that waits for them. They
    are no reason to take a process, or its node, for dead.
    """

    def __init__(self) -> None:
        self._wires: list[Channel] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: Channel) -> None:
        """Beat on this wire, too, from now on."""
        self._wires = [*self._wires, channel]  # a new list: the thread may be reading the other
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # Signals are the main thread's, which a blocking call of its own must not hide them from.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            for channel in self._wires:
                channel.beat()
            if self._over.wait(BEAT_S):
                return


def talk_to(
    argv: Sequence[str], errors: IO[bytes], **how: Any
) -> "tuple[subprocess.Popen[bytes], Channel]":
    """Start a command, with pipes to and from it; `how` is as in `subprocess.Popen`."""
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, **how
    )
    assert process.stdin is not None and process.stdout is not None
    channel = Channel(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()))
    process.stdin.close()
    process.stdout.close()
    return process, channel


@dataclass(frozen=True)
class AgentProcess:
    """One agent that was started: the way to it, and what this process has started for it."""

    channel: Channel
    process: "subprocess.Popen[bytes]"
    token: str | None = None  # that shows it what is from here, where a network is between


def start_each(argvs: Iterable[Sequence[str]], run_dir: Path) -> list[AgentProcess]:
    """Start agents, in the order of their nodes, with pipes to and from them.

    They start in this checkout; what goes to their stderr is kept in the run folder.
    """
    started = []
    for index, argv in enumerate(argvs):
        log = AGENT_ERRORS.path(run_dir, node=index)
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            errors = log.open("wb")
        with errors:  # a session of its own: a terminal's Ctrl-C is the launcher's to answer
            process, channel = talk_to(argv, errors, cwd=REPOSITORY, start_new_session=True)
        started.append(AgentProcess(channel, process))
    return started
