"""Start agents, and pass messages between the leader and them: one JSON object per line.

Neither side ever blocks: data that cannot be written yet waits in memory, and received data is read
on request, a limited amount at a time. Received data is never executed or unpickled. Any thread may
send; one thread receives.

Silence is measured by `running_s`, a clock that stands still while this process is stopped. A
process is stopped when a scheduler suspends its job, somebody sends SIGSTOP, or a laptop sleeps.
Until it continues, it receives nothing, and its workers do nothing. That time must not count as the
other side's silence: each limit continues from where it was. While a process runs, something looks
at the clock every second: the thread of `Heartbeat`, or a loop that waits. A much longer time
between two looks means that the whole process was stopped. So use this clock only in a process with
such regular looks: otherwise the time that a command takes would look like a stop.

The messages are in launch/nodes/messages.py.
"""

import errno
import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from launch.deadlines import (
    AGENT_LOST_WHEN_SILENT_S,
    BEAT_EVERY_S,
    ITSELF_STOPPED_AFTER_S,
    LEADER_LOST_WHEN_SILENT_S,
    MAIN_LOOP_STANDS_AFTER_S,
    MAIN_LOOP_TICK_S,
    STOP_COUNTS_AS_S,
)
from launch.nodes.messages import REFUSED, Assign, Beat, Decode, from_agent, odd
from launch.spec import Assignment, NodeFacts
from muster.checkout import CHECKOUT
from muster.run_files import AGENT_ERRORS
from muster.writing import writing

# A login shell may print anything before our first message, even without a final newline.
MESSAGE_MARK = b"muster:"
LINE_BYTES = 4_000_000
NOISE_BYTES = 2_000  # of one line that is not a message
CHUNK_BYTES = 65_536
# From `struct tcp_info`: how often, without an answer, the kernel has sent the same data again, and
# has asked whether it may send more; and the milliseconds since the last answer.
TCP_INFO_PARTS = struct.Struct("=2xBB52xI")
RECEIVE_BYTES = 1_048_576  # at a time, so that an endless sender cannot block this process
Result = TypeVar("Result")


class Channel:
    """Two file descriptors, or a socket's descriptor twice; the channel owns and closes them.

    `decode` makes a message from its line: see the decoders of messages.py.
    """

    def __init__(self, reads: int, writes: int, decode: Decode = msgspec.json.decode) -> None:
        self.decode = decode
        self._reads = reads
        self._writes = writes
        self._lock = threading.RLock()  # for all writes, and for closing
        self._in = b""
        self.allowance_bytes: int | None = None  # that may still be received; None: no limit
        self._out = bytearray()
        self._put_back: list[Any] = []
        self.noise: list[str] = []  # lines that are not messages, such as a remote shell's
        self.ended = False  # the other side has closed, or died
        self.has_message = False  # one of our messages was received
        self._looked_s = self._heard_s = running_s()  # the last look, and the last data received
        self._offset_s = -math.inf
        for descriptor in {reads, writes}:
            os.set_blocking(descriptor, False)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the other side has yet to receive."""
        return len(self._out)

    @property
    def silent_s(self) -> float:
        """Seconds from the last time that anything was received to the last look.

        Data may have arrived after the last look: a slow disk may have held up this process.
        """
        return self._looked_s - self._heard_s

    @property
    def is_cut_off(self) -> bool:
        """Whether, according to TCP, the other machine has not answered for a long time.

        A machine answers even if the process there is stopped or does not read. TCP_USER_TIMEOUT is
        not used, since with it the kernel also gives up on a process that does not read.
        """
        try:
            with socket.fromfd(self._reads, socket.AF_INET, socket.SOCK_STREAM) as same:
                info = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_PARTS.size)
        except OSError:  # a pipe
            return False
        repeats, questions, silent_ms = TCP_INFO_PARTS.unpack(info)
        is_silent: bool = silent_ms > AGENT_LOST_WHEN_SILENT_S * 1000
        return is_silent and max(repeats, questions) > 1  # a single packet may be lost

    @property
    def clock_offset_s(self) -> float:
        """Seconds to add to this side's clock to get the other's, based on the quickest beat."""
        return self._offset_s if self._offset_s > -math.inf else 0.0

    def send(self, message: msgspec.Struct) -> None:
        self.write(MESSAGE_MARK + msgspec.json.encode(message) + b"\n")

    def write(self, data: bytes) -> None:
        """Send data that is not a message, such as a program for a shell."""
        with self._lock:
            self._out += data
            self.flush()

    def beat(self) -> None:
        """Send a sign of life, unless other data is already waiting to be sent.

        The sign includes what the main thread is waiting for, if it has been waiting for long.
        """
        with self._lock:
            self.flush()
            if not self._out and not self.ended:
                self.send(self._beat())

    def _beat(self) -> Beat:
        waits_for, since_s = noted_wait() or ("", self._looked_s)
        stands_s = running_s() - since_s
        if stands_s <= MAIN_LOOP_STANDS_AFTER_S:
            return Beat(time.time())
        return Beat(time.time(), round(stands_s, 1), waits_for or line_of_main_thread())

    def flush(self) -> None:
        """Write as much as the other side accepts now."""
        with self._lock:
            while self._out and not self.ended:
                try:
                    written = os.write(self._writes, self._out[:CHUNK_BYTES])
                except BlockingIOError:
                    return
                except OSError:  # a broken pipe, or a reset; data that still arrives can be read
                    self._out.clear()
                    return
                del self._out[:written]

    def receive(self) -> list[Any]:
        """Return the messages received; if `ended` is true afterwards, there will be no more.

        An `OddMessage` takes the place of each message that `decode` refuses.
        """
        self.flush()
        self._looked_s = running_s()
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
            self._heard_s = self._looked_s
            left -= len(new)
            self._in += new
            if self.allowance_bytes is not None:
                self.allowance_bytes -= len(new)
                if self.allowance_bytes < 0:
                    self.ended = True
                    self._in = b""
                    break
            if len(self._in) > LINE_BYTES and b"\n" not in self._in:
                self.ended = True  # no message of ours is that long
                self._note(self._in)
        *lines, self._in = self._in.split(b"\n")
        first = self._put_back
        self._put_back = []
        return first + [message for line in lines if (message := self._read(line)) is not None]

    def first(
        self,
        *kinds: type[Result],
        patience_s: float = LEADER_LOST_WHEN_SILENT_S,
        within_s: float = math.inf,
    ) -> Result | None:
        """Wait for a message of one of `kinds`; None if the other side is gone or silent.

        `within_s`: the limit for the whole wait; the other side may send other messages for ever.
        """
        deadline = running_s() + within_s
        while not self.ended and self.silent_s <= patience_s and running_s() <= deadline:
            messages = self.receive()
            for at, message in enumerate(messages, start=1):
                if isinstance(message, kinds):
                    self.put_back(messages[at:])
                    return message
            wait_for_news([self], MAIN_LOOP_TICK_S)
        return None

    def awaited_events(self) -> dict[int, int]:
        """The events that this side waits for, by file: data to receive, space for unsent data."""
        events = {self._reads: select.POLLIN}
        if self._out:
            events[self._writes] = events.get(self._writes, 0) | select.POLLOUT
        return events

    def put_back(self, messages: Sequence[Any]) -> None:
        """Put back received messages, so that the code that takes over receives them first."""
        self._put_back = [*messages, *self._put_back]

    def _read(self, line: bytes) -> Any:
        noise, mark, text = line.partition(MESSAGE_MARK + b"{")
        if not mark:
            self._note(line)
            return None
        self.has_message = True
        self._note(noise)
        try:
            message = self.decode(b"{" + text)
        except REFUSED as error:
            return odd(error, b"{" + text)
        if isinstance(message, Beat):
            self._offset_s = max(self._offset_s, message.sent_unix_s - time.time())
        return message

    def _note(self, line: bytes) -> None:
        if line.strip() and len(self.noise) < 100:
            self.noise.append(line[:NOISE_BYTES].decode(errors="replace").rstrip())

    def drain(self, patience_s: float) -> None:
        """Wait until the other side has received everything, or is silent for `patience_s`.

        A side that still sends signs of life may be waiting for its disk; it gets the rest later.
        """
        while self.waiting_bytes and not self.ended and self.silent_s <= patience_s:
            time.sleep(MAIN_LOOP_TICK_S)
            self.put_back(self.receive())

    def close(self) -> None:
        """Close both directions; data not yet received is lost."""
        with self._lock:  # the number of a closed file may soon belong to another file
            self.ended = True
            for descriptor in {self._reads, self._writes}:
                with suppress(OSError):
                    os.close(descriptor)
            self._reads = self._writes = -1


def wait_for_news(channels: Iterable[Channel], seconds: float) -> set[Channel]:
    """Wait until data can be received or sent, `seconds` at most; return the channels concerned."""
    poll = select.poll()
    waiting: dict[int, Channel] = {}
    for channel in channels:
        if not channel.ended:
            for number, events in channel.awaited_events().items():
                waiting[number] = channel
                poll.register(number, events)
    return {waiting[number] for number, _ in poll.poll(seconds * 1000)}


class Heartbeat:
    """Send a sign of life every second on each channel, from a separate thread.

    A slow disk, terminal or file server blocks the thread that waits for it. That must not make a
    process, or its node, count as dead.
    """

    def __init__(self) -> None:
        self._channels: list[Channel] = []
        self._has_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: Channel) -> None:
        """Also use this channel from now on."""
        if channel in self._channels:
            return
        self._channels = [*self._channels, channel]  # a new list: the thread may read the old one
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Send no more signs of life."""
        self._has_stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        # Signals belong to the main thread; this thread must not receive them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            running_s()  # the clock relies on these regular looks
            for channel in self._channels:
                channel.beat()
            if self._has_stopped.wait(BEAT_EVERY_S):
                return


def start_with_pipes(
    argv: Sequence[str], errors: IO[bytes], decode: Decode = msgspec.json.decode, **how: Any
) -> "tuple[subprocess.Popen[bytes], Channel]":
    """Start a command, with pipes to and from it; `how` has arguments of `subprocess.Popen`."""
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, **how
    )
    assert process.stdin is not None and process.stdout is not None
    channel = Channel(os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()), decode)
    process.stdin.close()
    process.stdout.close()
    return process, channel


def _message_of(assignment: Assignment) -> Assign:
    return Assign(json.dumps(assignment.to_json()).encode())


@dataclass(frozen=True)
class AgentProcess:
    """One started agent: the channel to it, and the process started for it."""

    channel: Channel
    process: "subprocess.Popen[bytes]"
    # Makes the message with the agent's assignment; over a network, with a proof of its sender.
    message_of: Callable[[Assignment], Assign] = _message_of


def start_each(
    argv_of: Callable[[int, NodeFacts], Sequence[str]],
    run_dir: Path,
    nodes: Mapping[int, NodeFacts],
    heartbeat: Heartbeat,
) -> Iterator[AgentProcess]:
    """Start an agent for each of these nodes, in their order, with pipes to and from it.

    They start in this checkout; their stderr goes into the run folder. `heartbeat` reaches each
    agent as soon as it has started, since a slow disk may delay the start of the next agents.
    """
    for index, node in nodes.items():
        log = AGENT_ERRORS.path(run_dir, node=index)
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            errors = log.open("wb")
        with errors:  # its own session: a terminal's Ctrl-C is for the leader
            argv = argv_of(index, node)
            process, channel = start_with_pipes(
                argv, errors, from_agent, cwd=CHECKOUT, start_new_session=True
            )
        heartbeat.add(channel)
        yield AgentProcess(channel, process)


class RunningClock:
    """The seconds for which this process has been running, by `now`; any thread may ask."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._looked_s = now()
        self._running_s = 0.0

    def __call__(self) -> float:
        with self._lock:
            now = self._now()
            passed_s = now - self._looked_s
            self._looked_s = now
            self._running_s += passed_s if passed_s <= ITSELF_STOPPED_AFTER_S else STOP_COUNTS_AS_S
            return self._running_s


running_s = RunningClock()
_waits: list[tuple[str, float]] = []  # what is waited for, and since when; the innermost last


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Note what the main thread waits for, such as a file's path: a disk can take very long."""
    _waits.append((what, running_s()))
    try:
        yield
    finally:
        _waits.pop()


def noted_wait() -> tuple[str, float] | None:
    """What the main thread is waiting for, as noted by `waiting_for`, and since when; or None."""
    return next(iter(_waits[-1:]), None)


def line_of_main_thread() -> str:
    """The innermost line of our code in the main thread, where that thread is waiting."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for each, line in traceback.walk_stack(frame):
        file = Path(each.f_code.co_filename)
        if file.is_relative_to(CHECKOUT):
            return f"{each.f_code.co_name} ({file.relative_to(CHECKOUT)}, line {line})"
    return "nothing that is known"
