"""Agents that a leader starts, and messages between the leader and them: one JSON object per line.

Neither side ever blocks: data that cannot be written yet waits in memory, and received data is read
when it is asked for, a limited amount at a time. Received data is never executed or unpickled. Any
thread may send; one thread receives.

Silence is measured by `running_s`, a clock that stands still while this process is stopped. A
process is stopped when a scheduler suspends its job, somebody sends SIGSTOP, or a laptop sleeps.
Until it continues, it receives nothing, and its workers do nothing. That time must not count as the
silence of the other side: each limit continues from where it was. While a process runs, something
looks at the clock every second: the thread of `Heartbeat`, or a loop that waits. A much longer time
between two looks means that the whole process was stopped. So use this clock only in such a
process: otherwise the time that a command takes looks like a stop.

The messages:

    to an agent      {"assignment": {...}}                       what it has to run in this attempt
                     {"connect": {"address": "10.10.1.1", "port": 20000}}   connect to node 0
                     {"keep": {"own": [...], "peer": [...]}}     this connection is a node's
                     {"choose_port": true}                       all nodes are connected
                     {"start": 20001}                            start workers; torch's port
                     {"notice": true}                            the time of the job is nearly up
                     {"stop": 130, "why": "...", "hurry": false}
                     {"lost": "node2 (10.0.0.3) is gone: ..."}   another node has failed
                     {"inspect": {"id": "7", "ask": "stacks"}}
                     {"go": true}                                all agents have done their part
    from an agent    {"listening": {"address": "10.10.1.1", "port": 20000}}  of node 0 alone
                     {"accepted": {"own": ["10.10.1.1", 20000], "peer": [...]}}  of node 0 alone
                     {"connected": {"own": ["10.10.1.3", 40123], "peer": [...]}}
                     {"unreached": "connection refused"}
                     {"broken": {"own": [...], "peer": [...], "how": "silent"}}
                     {"master_port": 20001}                      of node 0 alone
                     {"here": {"node": "node1", "ranks": [2, 3], "address": "10.0.0.2", ...}}
                     {"notes": ["/dev/shm has ..."]}             what its workers lack
                     {"file": "...", ...}                        a part of a file: no shared disk
                     {"inspected": {"id": "7", ...}}
                     {"stopping": 30.0}                          workers stop in order, in 30 s
                     {"done": true}                              its workers have ended well
                     {"worker_end": {...}}                       how a rank ended, after a failure
                     {"failed": {...}}                           how its node failed: launch/ends.py
                     {"ended": {"code": 0, "cause": "done", ...}, "leaves": false}

After `ended` an agent waits for the assignment of the next attempt, unless it leaves, as after a
signal. It also leaves when its channel is closed.

The receiver of a message checks the message's form here before it uses anything of it. A message
with none of these forms is the failure of its sender: the leader closes the channel of such an
agent, an agent ends its part, and a worker counts as one that does not answer. What nodes answer
before a run is in `answer_forms.py`. What a form is: muster/records.py.
"""

import errno
import ipaddress
import json
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from launch import ends
from launch.deadlines import (
    BEAT_EVERY_S,
    ITSELF_STOPPED_AFTER_S,
    LEADER_LOST_WHEN_SILENT_S,
    MAIN_LOOP_STANDS_AFTER_S,
    MAIN_LOOP_TICK_S,
    STOP_COUNTS_AS_S,
)
from launch.nodes.message_types import AgentMessage, LeaderMessage
from launch.nodes.messages import REFUSED, Decode, odd
from launch.spec import Assignment, NodeFacts
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.printable import printable
from muster.records import dict_of, fits, is_count, is_exit_code, is_number, is_whole
from muster.run_files import AGENT_ERRORS
from muster.writing import writing

# A login shell may print anything before our first message, also without a last newline.
MARK = b"muster:"
LINE_BYTES = 4_000_000
NOISE_BYTES = 2_000  # of one line that is no message
CHUNK_BYTES = 65_536
RECEIVE_BYTES = 1_048_576  # at a time, so that an endless sender cannot block this process


class Channel:
    """Two file descriptors, or a socket's one twice; the channel owns and closes them.

    `decode` makes a message from its line: see the decoders of messages.py.
    """

    def __init__(self, reads: int, writes: int, decode: Decode = msgspec.json.decode) -> None:
        self.decode = decode
        self._reads = reads
        self._writes = writes
        self._lock = threading.RLock()  # for all writes, and for closing
        self._in = b""
        self.allowance_bytes: int | None = None  # may still come; None: any number
        self._out = bytearray()
        self._put_back: list[dict[str, Any]] = []
        self.noise: list[str] = []  # lines that are no messages, such as a remote shell's
        self.ended = False  # the other side has closed, or died
        self.has_message = False  # one of our messages was received
        self._looked_s = self._heard_s = running_s()  # last; and when anything was received last
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

        What came after the last look is not known yet: a disk may have held up this process.
        """
        return self._looked_s - self._heard_s

    @property
    def clock_offset_s(self) -> float:
        """Seconds to add to this side's clock to get the other's, by the quickest beat."""
        return self._offset_s if self._offset_s > -math.inf else 0.0

    def send(self, **message: Any) -> None:
        self.write(MARK + json.dumps(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send data that is no message, such as a program to a shell."""
        with self._lock:
            self._out += data
            self.flush()

    def beat(self) -> None:
        """Send a sign of life, unless other data is already waiting to be sent.

        The sign says what the main thread waits for, if it has waited for long.
        """
        with self._lock:
            self.flush()
            if not self._out and not self.ended:
                self.send(beat=time.time(), **self._stall())

    def _stall(self) -> dict[str, Any]:
        waits_for, since_s = noted_wait() or ("", self._looked_s)
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
                except OSError:  # a broken pipe, or a reset; what still comes in can be read
                    self._out.clear()
                    return
                del self._out[:written]

    def receive(self) -> list[Any]:
        """The messages received; afterwards `ended` says whether there will be more."""
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
        self, *names: str, patience_s: float = LEADER_LOST_WHEN_SILENT_S, within_s: float = math.inf
    ) -> dict[str, Any] | None:
        """Wait for a message with one of `names`; None if the other side is gone or silent.

        `within_s`: how long in all, since the other side may send other messages for ever.
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

    def awaited_events(self) -> dict[int, int]:
        """What this side waits for, by its files: data to receive, and space for unsent data."""
        events = {self._reads: select.POLLIN}
        if self._out:
            events[self._writes] = events.get(self._writes, 0) | select.POLLOUT
        return events

    def put_back(self, messages: Sequence[dict[str, Any]]) -> None:
        """Have these received messages come first again, for the code that takes over."""
        self._put_back = [*messages, *self._put_back]

    def _read(self, line: bytes) -> Any:
        noise, mark, text = line.partition(MARK + b"{")
        if not mark:
            self._note(line)
            return None
        self.has_message = True
        self._note(noise)
        try:
            message = self.decode(b"{" + text)
        except REFUSED as error:
            return odd(error, b"{" + text)
        if isinstance(message, dict) and isinstance(sent := message.get("beat"), float):
            self._offset_s = max(self._offset_s, sent - time.time())
        return message

    def _note(self, line: bytes) -> None:
        if line.strip() and len(self.noise) < 100:
            self.noise.append(line[:NOISE_BYTES].decode(errors="replace").rstrip())

    def drain(self, patience_s: float) -> None:
        """Wait until the other side has received everything, or is silent for `patience_s`.

        A side that still gives signs of life may wait for its disk, and receives the rest later.
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
    """Wait until something can be received, or sent, and so long at most; on which channels."""
    poll = select.poll()
    waiting: dict[int, Channel] = {}
    for channel in channels:
        if not channel.ended:
            for number, events in channel.awaited_events().items():
                waiting[number] = channel
                poll.register(number, events)
    return {waiting[number] for number, _ in poll.poll(seconds * 1000)}


class Heartbeat:
    """Send a sign of life every second, from a thread of its own, on each channel.

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


def _message_of(assignment: Assignment) -> dict[str, Any]:
    return {"assignment": assignment.to_json()}


@dataclass(frozen=True)
class AgentProcess:
    """One started agent: the channel to it, and the process started for it."""

    channel: Channel
    process: "subprocess.Popen[bytes]"
    # Makes the message with its assignment; over a network with a proof of who sends it.
    message_of: Callable[[Assignment], dict[str, Any]] = _message_of


def start_each(
    argv_of: Callable[[int, NodeFacts], Sequence[str]],
    run_dir: Path,
    nodes: Mapping[int, NodeFacts],
    heartbeat: Heartbeat,
) -> Iterator[AgentProcess]:
    """Start an agent for each of these nodes, in their order, with pipes to and from it.

    They start in this checkout; their stderr goes into the run folder. `heartbeat` reaches each
    agent from its start on, since a slow disk may delay the start of the next ones.
    """
    for index, node in nodes.items():
        log = AGENT_ERRORS.path(run_dir, node=index)
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            errors = log.open("wb")
        with errors:  # its own session: Ctrl-C of a terminal is for the leader
            argv = argv_of(index, node)
            process, channel = start_with_pipes(argv, errors, cwd=CHECKOUT, start_new_session=True)
        heartbeat.add(channel)
        yield AgentProcess(channel, process)


class RunningClock:
    """The seconds for which this process was running, by `now`; any thread may ask."""

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
    """What the main thread waits for, by `waiting_for`, and since when; None: nothing."""
    return next(iter(_waits[-1:]), None)


def line_of_main_thread() -> str:
    """The innermost line of our code in the main thread, where that thread waits."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for each, line in traceback.walk_stack(frame):
        file = Path(each.f_code.co_filename)
        if file.is_relative_to(CHECKOUT):
            return f"{each.f_code.co_name} ({file.relative_to(CHECKOUT)}, line {line})"
    return "nothing that is known"


FAILURE_CHARACTERS = 100_000  # of a failure, which may quote a program's output
QUOTED_CHARACTERS = 1_000  # of our words around it, where it is passed on
TEXT_CHARACTERS = 4_096  # of a name, or a line of source
EXCERPT_CHARACTERS = 200
DATA_CHARACTERS = 400_000  # of a part of a file, as base64: see log_sync.CHUNK_BYTES
MOST_SECONDS = 1e9
MOST_NUMBER = 1e18  # of any number
MOST_RANKS = 65_536
ALL_PORTS = range(1, 65_536)
ADDRESS_CHARACTERS = 64  # of IPv6 with the name of a card
ID_CHARACTERS = 64  # of a question
ODD = "sent an odd message"  # in the words for a failure with no other description

Forms = Mapping[str, Any]


class OddMessage(MusterError):
    """A message has none of our forms; the text says what is odd about it."""


def is_line(value: object) -> bool:
    """Whether it is a short text that can be printed on one line."""
    return isinstance(value, str) and len(value) <= TEXT_CHARACTERS and value.isprintable()


def check_message(message: Mapping[str, Any], forms: Forms) -> None:
    """Check a message by the form of the first name in `forms` that the message has.

    Raises:
        OddMessage: it does not fit, or has no such name.
    """
    name = next((name for name in forms if name in message), None)
    if name is None:
        raise OddMessage(f"of no kind that is known here: {quoted(message)}")
    if not fits(message, forms[name]):
        raise OddMessage(f"{name!r}, which has another form than ours: {quoted(message)}")


def read_agent(message: Mapping[str, Any], forms: Forms) -> AgentMessage:
    """The message, checked by the forms of its agent.

    Raises:
        OddMessage: see `check_message`.
    """
    check_message(message, forms)
    return cast("AgentMessage", message)


def read_leader(message: Mapping[str, Any]) -> LeaderMessage:
    """The message of the leader, checked.

    Raises:
        OddMessage: see `check_message`.
    """
    check_message(message, FROM_LEADER)
    return cast("LeaderMessage", message)


def quoted(value: object) -> str:
    """The beginning of what a node has sent, in a form that can be printed."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except RecursionError:
        text = "it is nested too deeply"
    return ascii(text[:EXCERPT_CHARACTERS])


def cleaned(value: Any) -> Any:
    """A checked message, with escapes in its texts for all that could move a cursor."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [cleaned(element) for element in value]
    if isinstance(value, dict):
        return {key: cleaned(element) for key, element in value.items()}
    return value


def _text(most: int) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and len(value) <= most


def _seconds(most: float) -> Callable[[Any], bool]:
    return lambda value: _is_small_number(value) and 0 <= value <= most


def _below(end: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value < end


def is_port(value: object) -> bool:
    return fits(value, int) and value in ALL_PORTS


def is_address(value: object) -> bool:
    """Whether it is the address of a machine, in numbers; IPv6 may name a card."""
    if not isinstance(value, str) or len(value) > ADDRESS_CHARACTERS or not value.isprintable():
        return False
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return False
    return True


def _is_end_of_connection(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and is_address(value[0]) and is_port(value[1])


def is_size(value: Any) -> bool:
    return is_whole(value) and value >= 0


def is_request_id(value: object) -> bool:
    """Whether it may name a request, and the file for its answer."""
    return isinstance(value, str) and value.isalnum() and len(value) <= ID_CHARACTERS


def _is_true(value: object) -> bool:
    return value is True


def _is_small_number(value: Any) -> bool:
    return is_number(value) and abs(value) < MOST_NUMBER


def _is_file_name(value: object) -> bool:
    """Whether it can be the name of a file; whose file it is, is checked later."""
    if not isinstance(value, str) or not 0 < len(value) <= TEXT_CHARACTERS:
        return False
    try:
        return "\0" not in value and bool(os.fsencode(value))
    except UnicodeEncodeError:
        return False


def _is_host(value: object) -> bool:
    return is_line(value) and bool(value) and "/" not in str(value)


def _is_end(value: object) -> bool:
    """Whether it is a record of an agent's end; the leader uses its exit code alone."""
    return isinstance(value, dict) and is_exit_code(value.get("code"))


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


ENDPOINT = {"address": is_address, "port": is_port}
CONNECTION_ENDS = {"own": _is_end_of_connection, "peer": _is_end_of_connection}
SHORT_TEXT = _text(TEXT_CHARACTERS)
PASSED_ON = _text(FAILURE_CHARACTERS + QUOTED_CHARACTERS)
AGE = _seconds(MOST_SECONDS)
BEAT = (
    {"beat": (bool, int, float)},
    {"beat": (bool, int, float), "stands_s": AGE, "waits_for": SHORT_TEXT},
)
SOURCE_LINE = {"file": SHORT_TEXT, "line": (None, int), "function": SHORT_TEXT}
STACK_LINE = {**SOURCE_LINE, "text?": SHORT_TEXT, "for_s?": _is_small_number}
COLLECTIVE = {
    "group": SHORT_TEXT,
    "description": SHORT_TEXT,
    "number": int,
    "operation": SHORT_TEXT,
    "shapes": [[int]],
    "types": [SHORT_TEXT],
    "waits": bool,
    "begun_unix_s": _is_small_number,
    "age_s": _is_small_number,
    "limit_s": _is_small_number,
}
INIT_CALL = {
    "rank": (None, int),
    "world_size": (None, int),
    "store": SHORT_TEXT,
    "serves": bool,
    "by_launcher": bool,
    "method": SHORT_TEXT,
}
STACKS = {
    "gave_up?": (None, {"message": SHORT_TEXT, "frames": [SOURCE_LINE]}),
    "threads?": [{"name": SHORT_TEXT, "main": bool, "frames": [STACK_LINE]}],
    "groups?": dict_of(is_line, {"ranks?": [_below(MOST_RANKS)], "begun?": int}),
    "collectives?": [COLLECTIVE],
    "meeting?": (None, INIT_CALL),
}


def form_of_worker(rank: int) -> Any:
    """The form of the answer of this rank's worker to its agent."""
    return {
        "rank": _only(rank),
        "pid": is_count,
        "time_unix_s": _is_small_number,
        "begun?": int,
        "places?": [int],
        **STACKS,
    }


def _only(own: object) -> Callable[[object], bool]:
    return lambda value: type(value) is type(own) and value == own


def _is_rank_of(assignment: Assignment) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value in assignment.ranks


def forms_of_agent(assignment: Assignment) -> Forms:
    """The forms of the messages that the agent with this assignment may send to its leader."""
    report = {
        "rank": _is_rank_of(assignment),
        "pid": (None, is_count),
        "time_unix_s": _is_small_number,
        "answers": bool,
        "clock_offset_s": _is_small_number,
        "muster?": SHORT_TEXT,
        "process?": {
            "status": SHORT_TEXT,
            "words": SHORT_TEXT,
            "children?": [{"pid": is_count, "words": SHORT_TEXT}],
        },
        "is_command?": bool,
        **STACKS,
    }
    here = {
        "index": _only(assignment.index),
        "node": _only(assignment.name),
        "ranks": _only(list(assignment.ranks)),
        "cores": is_line,
        "address": is_line,
        "interface": (None, is_line),
        "time_unix_s": _is_small_number,
        "host": _is_host,
        "pid": is_count,
        "started_unix_s": _is_small_number,
        "start_ticks?": int,
        "boot_id?": is_line,
        "muster?": is_line,
    }
    if assignment.index == 0:
        connections = {
            "listening": {"listening": ENDPOINT},
            "accepted": {"accepted": CONNECTION_ENDS},
            "master_port": {"master_port": is_port},
        }
    else:
        connections = {
            "connected": {"connected": CONNECTION_ENDS},
            "unreached": {"unreached": is_line},
        }
    return {
        "beat": BEAT,
        **connections,
        "broken": {
            "broken": {**CONNECTION_ENDS, "how": lambda value: value in ("closed", "silent")}
        },
        "here": {"here": here},
        "notes": {"notes": [SHORT_TEXT]},
        "file": {
            "file": _is_file_name,
            "at": is_size,
            "data": _text(DATA_CHARACTERS),
            "last": bool,
        },
        "inspected": {
            "inspected": (
                {"id": _only("still"), "still": {"s": AGE, "pause_s": AGE}},
                {"id": _only("timeout"), "look": _is_true},
                {"id": is_request_id, "complete": _is_true},
                {"id": is_request_id, "report": report},
            )
        },
        "stopping": {"stopping": _seconds(assignment.spec.stop_grace_s), "all?": bool},
        "done": {"done": _is_true},
        "failed": {"failed": {**ends.FORM, "rank": None}},
        "worker_end": {"worker_end": {**ends.FORM, "rank": _is_rank_of(assignment)}},
        "ended": {"ended": _is_end, "leaves?": bool},
    }


FROM_LEADER: Forms = {
    "beat": BEAT,
    "assignment": {"assignment": _is_object, "proof?": SHORT_TEXT},
    "connect": {"connect": {"address": is_line, "port": is_port}},  # by number, or by name
    "keep": {"keep": CONNECTION_ENDS},
    "choose_port": {"choose_port": _is_true},
    "start": {"start": is_port},
    "notice": {"notice": _is_true},
    "stop": {"stop": is_exit_code, "why?": PASSED_ON, "signal?": PASSED_ON, "hurry?": bool},
    "lost": {"lost": PASSED_ON},
    "inspect": {
        "inspect": {"id": is_request_id, "ask": lambda value: value in ("stacks", "resume")},
    },
    "go": {"go": _is_true},
}
