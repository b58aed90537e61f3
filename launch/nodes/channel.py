"""Agents that a leader starts, and messages between it and them: one JSON object per line.

Neither side ever blocks: data that cannot be written yet waits in memory, and received data is read
when it is asked for, a limited amount at a time. Received data is never executed or unpickled. Any
thread may send; one thread receives.
"""

import errno
import json
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from launch.deadlines import (
    BEAT_EVERY_S,
    LEADER_LOST_WHEN_SILENT_S,
    MAIN_LOOP_STANDS_AFTER_S,
    MAIN_LOOP_TICK_S,
)
from launch.nodes.running_time import line_of_main_thread, noted_wait, running_s
from launch.spec import Assignment, NodeFacts
from muster.checkout import CHECKOUT
from muster.run_files import AGENT_ERRORS
from muster.writing import writing

# A login shell may print anything before our first message, also without a last newline.
MARK = b"muster:"
LINE_BYTES = 4_000_000
NOISE_BYTES = 2_000  # of one line that is no message
CHUNK_BYTES = 65_536
RECEIVE_BYTES = 1_048_576  # at a time: a sender without end cannot block this process


class Channel:
    """Two file descriptors, or a socket's one twice; the channel owns and closes them."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._lock = threading.RLock()  # for all writes, and for closing
        self._in = b""
        self.allowance_bytes: int | None = None  # may still come; None: any number
        self._out = bytearray()
        self._put_back: list[dict[str, Any]] = []
        self.noise: list[str] = []  # lines that are no messages: of a remote shell, say
        self.ended = False  # the other side has closed, or died
        self.has_message = False  # one of our messages was received
        self._looked = self._heard = running_s()  # last; and when anything was received last
        self._offset_s = -math.inf
        for descriptor in {reads, writes}:
            os.set_blocking(descriptor, False)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the other side has yet to receive."""
        return len(self._out)

    @property
    def silent_s(self) -> float:
        """Seconds since anything was received, as of the last look.

        What came after that is not known yet: a disk may have held this process up since then.
        """
        return self._looked - self._heard

    @property
    def clock_offset_s(self) -> float:
        """To add to this side's clock to have the other's, by the beat that was the quickest."""
        return self._offset_s if self._offset_s > -math.inf else 0.0

    def send(self, **message: Any) -> None:
        self.write(MARK + json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send data that is no message, such as a program to a shell."""
        with self._lock:
            self._out += data
            self.flush()

    def beat(self) -> None:
        """Send a sign of life, unless data that shows it is waiting already.

        It says what the main thread waits for, if it has done so for long.
        """
        with self._lock:
            self.flush()
            if not self._out and not self.ended:
                self.send(beat=time.time(), **self._standing())

    def _standing(self) -> dict[str, Any]:
        waits_for, since_s = noted_wait() or ("", self._looked)
        stands_s = running_s() - since_s
        if stands_s <= MAIN_LOOP_STANDS_AFTER_S:
            return {}
        return {"stands_s": round(stands_s, 1), "waits_for": waits_for or line_of_main_thread()}

    def flush(self) -> None:
        """Write as much as the other side accepts now."""
        with self._lock:
            while self._out and not self.ended:
                try:
                    written = os.write(self._writes, self._out[:CHUNK_BYTES])
                except BlockingIOError:
                    return
                except OSError:  # a broken pipe, a reset: what still comes in is read
                    self._out.clear()
                    return
                del self._out[:written]

    def receive(self) -> list[dict[str, Any]]:
        """The messages received; afterwards `ended` says whether there will be more."""
        self.flush()
        self._looked = running_s()
        left = RECEIVE_BYTES
        while not self.ended and left > 0:
            try:
                new = os.read(self._reads, min(CHUNK_BYTES, left))
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.EIO, errno.ETIMEDOUT):
                    self.noise.append(os.strerror(error.errno or 0))
                new = b""
            if not new:
                self.ended = True
                break
            self._heard = self._looked
            left -= len(new)
            self._in += new
            if self.allowance_bytes is not None:
                self.allowance_bytes -= len(new)
                if self.allowance_bytes < 0:
                    self.ended, self._in = True, b""
                    break
            if len(self._in) > LINE_BYTES and b"\n" not in self._in:
                self.ended = True  # no message of ours is that long
                self._note(self._in)
        *lines, self._in = self._in.split(b"\n")
        first, self._put_back = self._put_back, []
        return first + [message for line in lines if (message := self._read(line)) is not None]

    def first(
        self, *names: str, patience_s: float = LEADER_LOST_WHEN_SILENT_S, within_s: float = math.inf
    ) -> dict[str, Any] | None:
        """Wait for a message with one of `names`; None if the other side is gone or silent.

        `within_s`: how long in all, for one that may say anything else for ever.
        """
        deadline = running_s() + within_s
        while not self.ended and self.silent_s <= patience_s and running_s() <= deadline:
            messages = self.receive()
            for at, message in enumerate(messages, start=1):
                if message.keys() & set(names):
                    self.put_back(messages[at:])
                    return message
            wait_for_news([self], MAIN_LOOP_TICK_S)
        return None

    def fileno(self) -> int:
        """The file that is read; -1 once it is closed."""
        return self._reads

    def put_back(self, messages: Sequence[dict[str, Any]]) -> None:
        """Have these received messages come first again, for the code that takes over."""
        self._put_back = [*messages, *self._put_back]

    def _read(self, line: bytes) -> dict[str, Any] | None:
        noise, mark, text = line.partition(MARK + b"{")
        if mark:
            try:
                message = json.loads(b"{" + text)
            except (ValueError, RecursionError):  # for example brackets nested too deeply
                message = None
            if isinstance(message, dict):
                self.has_message = True
                self._note(noise)
                if isinstance(sent := message.get("beat"), float) and math.isfinite(sent):
                    self._offset_s = max(self._offset_s, sent - time.time())
                return message
        self._note(line)
        return None

    def _note(self, line: bytes) -> None:
        if line.strip() and len(self.noise) < 100:
            self.noise.append(line[:NOISE_BYTES].decode(errors="replace").rstrip())

    def drain(self, patience_s: float) -> None:
        """Wait until the other side has received everything, or is silent for `patience_s`.

        One that still gives signs of life may wait for its disk, and takes it later.
        """
        while self.waiting_bytes and not self.ended and self.silent_s <= patience_s:
            time.sleep(MAIN_LOOP_TICK_S)
            self.put_back(self.receive())

    def close(self) -> None:
        """Close both directions; data not yet received is lost."""
        with self._lock:  # a closed number may soon be that of another file
            self.ended = True
            for descriptor in {self._reads, self._writes}:
                with suppress(OSError):
                    os.close(descriptor)
            self._reads = self._writes = -1


def wait_for_news(channels: Iterable[Channel], seconds: float) -> None:
    """Wait until something can be received on one of these channels, and so long at most."""
    poll = select.poll()
    for channel in channels:
        if not channel.ended:
            poll.register(channel, select.POLLIN)
    poll.poll(seconds * 1000)


class Heartbeat:
    """Send a sign of life every second, from a thread of its own, on each channel.

    A slow disk, terminal or file server blocks the thread that waits for it. That must not make a
    process, or its node, count as dead.
    """

    def __init__(self) -> None:
        self._wires: list[Channel] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: Channel) -> None:
        """Also use this channel from now on."""
        if channel in self._wires:
            return
        self._wires = [*self._wires, channel]  # a new list: the thread may read the old one
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send no more signs of life."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # Signals belong to the main thread; this thread must not receive them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            running_s()  # which goes by these looks
            for channel in self._wires:
                channel.beat()
            if self._over.wait(BEAT_EVERY_S):
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


def _message_of(assignment: Assignment) -> dict[str, Any]:
    return {"assignment": assignment.to_json()}


@dataclass(frozen=True)
class AgentProcess:
    """One started agent: the channel to it, and the process started for it."""

    channel: Channel
    process: "subprocess.Popen[bytes]"
    # The message with its assignment; over a network with a proof that it is from this process.
    message_of: Callable[[Assignment], dict[str, Any]] = _message_of


def start_each(
    argv_of: Callable[[int, NodeFacts], Sequence[str]],
    run_dir: Path,
    nodes: Mapping[int, NodeFacts],
    heartbeat: Heartbeat,
) -> Iterator[AgentProcess]:
    """Start an agent for each of these nodes, in their order, with pipes to and from it.

    They start in this checkout; their stderr goes into the run folder. `heartbeat` reaches each
    from its start on: the disk may make the next ones wait.
    """
    for index, node in nodes.items():
        log = AGENT_ERRORS.path(run_dir, node=index)
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            errors = log.open("wb")
        with errors:  # its own session: Ctrl-C of a terminal is for the leader
            argv = argv_of(index, node)
            process, channel = talk_to(argv, errors, cwd=CHECKOUT, start_new_session=True)
        heartbeat.add(channel)
        yield AgentProcess(channel, process)
