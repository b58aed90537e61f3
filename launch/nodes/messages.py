"""All messages between leader and agents: a class is a message's type, check and description.

A message is one line of JSON, in which `kind` names the class. The receiver's decoder makes an
object of the class from the line, or refuses the line: for an unknown or missing kind or field, a
value of another type, a number or text outside its limits, or a number that is not finite. A
refused message counts as its sender's failure: the leader closes the channel of such an agent, and
an agent ends its part. A worker whose answer is refused counts as not answering.

`check_sender` then checks what a decoder cannot, such as whether ranks are the agent's own.

Every text is made printable, both when a message is created and when it is received. So a text
cannot move a terminal's cursor, and a file name that is not valid UTF-8 can be sent. The names of
files that are copied to the leader must not change, so they are sent as bytes.

After `Ended`, an agent waits for the assignment of the next attempt, unless it leaves, for example
after a signal. It also leaves when its channel is closed.
"""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from launch.ends import MOST_RANKS, End, ExitCode, RankNumber
from launch.spec import Assignment
from muster.errors import MusterError
from muster.printable import on_one_line, printable

TEXT_CHARACTERS = 4_096  # of a name, or a line of source
PASSED_ON_CHARACTERS = 101_000  # of a failure, which may quote a program's output
EXCERPT_CHARACTERS = 200
DATA_BYTES = 300_000  # of a part of a file: see log_sync.CHUNK_BYTES

ShortText = Annotated[str, Meta(max_length=TEXT_CHARACTERS)]
Line = Annotated[
    str, Meta(max_length=TEXT_CHARACTERS, pattern=r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029]*\Z")
]
PassedOn = Annotated[str, Meta(max_length=PASSED_ON_CHARACTERS)]
HostName = Annotated[str, Meta(pattern=r"\A[^\x00-\x20\x7f-\x9f/]{1,255}\Z")]
# It is also used in the name of the answer's file.
QuestionId = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z]{1,64}\Z")]
Port = Annotated[int, Meta(ge=1, le=65_535)]
Pid = Annotated[int, Meta(ge=0, lt=1 << 31)]
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Number = Annotated[float, Meta(gt=-1e18, lt=1e18)]


class Value(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a message; all its texts are printable."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if (cleaned := _cleaned(value)) is not value:
                force_setattr(self, name, cleaned)


def _cleaned(value: Any) -> Any:
    """`value`, with escapes for everything in its texts that could move a cursor."""
    if isinstance(value, str):
        if value.isprintable():
            return value
        # even with escapes, a text must not be too long to be sent
        return printable(value)[: max(len(value), TEXT_CHARACTERS)]
    if isinstance(value, tuple):
        return tuple(map(_cleaned, value))
    if isinstance(value, dict):
        return {_cleaned(key): each for key, each in value.items()}
    return value


class Message(Value, tag_field="kind", tag=str.lower, frozen=True):
    """A message between leader and agents."""


# -- values in messages --------------------------------------------------------------------------


class Endpoint(Value, frozen=True):
    """One end of a connection: a machine's numeric address and a port."""

    address: Annotated[str, Meta(max_length=64)]  # for IPv6 perhaps with a card's name
    port: Port

    def __post_init__(self) -> None:
        super().__post_init__()
        ipaddress.ip_address(self.address)  # a ValueError refuses the message


class ConnectionEnds(Value, frozen=True):
    """A connection between a node and node 0, as one of them sees it."""

    own: Endpoint
    peer: Endpoint


class Frame(Value, omit_defaults=True, frozen=True):
    """A line that a thread is in, and the minimum time for which it has been there."""

    file: ShortText
    line: Int64 | None
    function: ShortText
    text: ShortText = ""
    for_s: Number | None = None

    def __str__(self) -> str:
        function = self.function.rpartition("<locals>.")[2]
        inside = "" if function == "<module>" else f"{function}, "
        return f"{inside}{Path(self.file).name}:{self.line}"


class Thread(Value, frozen=True):
    """The lines that a thread is in, the innermost line last."""

    name: ShortText
    main: bool
    frames: tuple[Frame, ...]


class GaveUp(Value, frozen=True):
    """A collective in which a rank has waited in vain, and where the rank waited."""

    message: ShortText
    frames: tuple[Frame, ...]


class Group(Value, frozen=True):
    """One of torch's process groups, as a rank sees it."""

    ranks: Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_RANKS)] = ()  # empty: all
    begun: Int64 = -1  # number of the last collective that this rank has begun in it


class Collective(Value, frozen=True):
    """One collective that a rank has begun."""

    group: ShortText
    description: ShortText
    number: Int64
    operation: ShortText
    shapes: tuple[tuple[Int64, ...], ...]
    types: tuple[ShortText, ...]
    waits: bool  # the rank is still waiting in it
    age_s: Number
    limit_s: Number  # torch's timeout for it
    begun_unix_s: Number = 0.0  # by its node's clock

    @property
    def name(self) -> str:
        return f"{self.operation} {self.number}"

    @property
    def shape(self) -> str:
        return " ".join(str(list(shape)) for shape in self.shapes)


class InitCall(Value, frozen=True):
    """A rank's call of `init_process_group`: its arguments, and what it waits for."""

    rank: Int64 | None
    world_size: Int64 | None
    store: ShortText  # the address to which it is connecting, or at which it waits for the others
    serves: bool  # this rank serves that store
    by_launcher: bool  # torchrun serves the store, and no rank does
    method: ShortText  # the init_method


class ChildReport(Value, frozen=True):
    """A process that a worker's program has started."""

    pid: Pid
    words: ShortText  # what it does, as the kernel sees it


class ProcessReport(Value, frozen=True):
    """A worker's process, as the kernel sees it."""

    status: ShortText  # in psutil's words: running, sleeping, stopped, dead
    words: ShortText
    children: tuple[ChildReport, ...] = ()


class WorkerAnswer(Value, kw_only=True, frozen=True):
    """A worker's answer to its agent: see muster/worker/inspection.py."""

    rank: RankNumber
    pid: Pid | None = None
    time_unix_s: Number = 0.0
    begun: Int64 | None = None  # collectives, in all groups
    places: tuple[Int64, ...] = ()  # positions at which its main thread was seen
    gave_up: GaveUp | None = None
    threads: tuple[Thread, ...] = ()
    groups: dict[Line, Group] = {}
    collectives: tuple[Collective, ...] = ()
    init_call: InitCall | None = None


class Report(WorkerAnswer, kw_only=True, frozen=True):
    """What one rank is doing: its worker's answer, and what its agent sees."""

    # the worker itself; otherwise all is from the kernel, faulthandler or a file that it left
    answers: bool = False
    muster: ShortText = ""  # the folder of Muster's checkout on its node
    clock_offset_s: Number = 0.0  # to add to its node's clock to get the leader's
    process: ProcessReport | None = None
    is_command: bool = False  # not Python, or a Python without our handler


# -- before a run in a scheduler's job: launch/in_job/job_connection.py ----------------------------


class Nonce(Message, frozen=True):
    """Sent first by an agent, then by the leader, whose proof of the secret it contains."""

    nonce: ShortText
    proof: ShortText = ""


class Introduction(Message, frozen=True):
    """An agent's description of itself, an `AgentTask` in JSON, with its proof of the secret."""

    task: Annotated[bytes, Meta(max_length=TEXT_CHARACTERS)]
    proof: ShortText


class Welcome(Message, frozen=True):
    """The leader has accepted the agent."""


# -- from both sides -------------------------------------------------------------------------------


class Beat(Message, omit_defaults=True, frozen=True):
    """A sign of life, once a second; it names what the main thread waits for if it waits long."""

    sent_unix_s: Number
    stands_s: Seconds = 0.0  # for how long the main thread has stood still
    waits_for: ShortText = ""


# -- from the leader -------------------------------------------------------------------------------


class Assign(Message, frozen=True):
    """What the agent has to run in the next attempt: an `Assignment` in JSON.

    It is sent as bytes, since arguments and paths need not be valid UTF-8. Over a network, it comes
    with a proof of its sender.
    """

    assignment: bytes
    proof: ShortText = ""


class Connect(Message, frozen=True):
    """Connect to node 0, at this address or name."""

    address: Line
    port: Port


class KeepConnection(Message, frozen=True):
    """To node 0 only: this connection comes from one of the run's nodes."""

    ends: ConnectionEnds


class ChoosePort(Message, frozen=True):
    """To node 0 only: choose torch's port, since the workers of all nodes may now start."""


class Start(Message, frozen=True):
    """Start the workers, with this port for torch."""

    master_port: Port


class Notice(Message, frozen=True):
    """The job's time is nearly up."""


class Stop(Message, frozen=True):
    """End this node's part of the attempt."""

    code: ExitCode
    why: PassedOn = "told to stop"
    signal: PassedOn = ""  # the reason that workers get; "": `why`
    at_once: bool = False  # without time for the workers to end on their own


class Lost(Message, frozen=True):
    """Something has failed elsewhere, such as another node."""

    why: PassedOn


class Inspect(Message, frozen=True):
    """Ask the workers where they are, or let those continue that wait for this after a timeout."""

    id: QuestionId
    ask: Literal["stacks", "resume"]


class Released(Message, frozen=True):
    """All agents have done their part: no node needs this agent any more in this attempt."""


# -- from an agent ---------------------------------------------------------------------------------


class Listening(Message, frozen=True):
    """From node 0 only: where it listens for connections from other nodes."""

    at: Endpoint


class Accepted(Message, frozen=True):
    """From node 0 only: a connection that it has accepted, from any program."""

    ends: ConnectionEnds


class ChosenPort(Message, frozen=True):
    """From node 0 only: the port that it has chosen for torch."""

    port: Port


class Connected(Message, frozen=True):
    """From every other node: it has connected to node 0."""

    ends: ConnectionEnds


class Unreached(Message, frozen=True):
    """From every other node: it cannot connect to node 0, and keeps trying."""

    reason: Line


class Broken(Message, frozen=True):
    """A connection that has ended, either with a node of the run or with another program."""

    ends: ConnectionEnds
    how: Literal["closed", "silent"]


class NodeReady(Message, frozen=True):
    """The node is ready: its host and address, and its workers' cores in words."""

    host: HostName
    address: Line
    interface: Line | None
    cores: Line


class Note(Message, frozen=True):
    """A line to print about what the node lacks."""

    text: ShortText


class File(Message, frozen=True):
    """A part of a file of the run folder, from a node that does not share the leader's disk."""

    name: Annotated[bytes, Meta(min_length=1, max_length=TEXT_CHARACTERS)]
    at: Size  # the part begins at this byte
    data: Annotated[bytes, Meta(max_length=DATA_BYTES)]
    last: bool  # this part completes the file


class NoProgress(Message, frozen=True):
    """How long no worker on the node has made progress, and their longest pause until now."""

    still_s: Seconds
    longest_pause_s: Seconds


class WaitedInVain(Message, frozen=True):
    """A collective has timed out, and its rank waits until all ranks have been inspected."""


class Inspected(Message, frozen=True):
    """What one rank is doing, in answer to `Inspect`; the id is "end" before workers are ended."""

    id: QuestionId
    report: Report


class InspectedAll(Message, frozen=True):
    """The agent has sent its answers to this `Inspect`."""

    id: QuestionId


class Stopping(Message, frozen=True):
    """Workers were asked to stop within this number of seconds."""

    within_s: Seconds
    has_asked_all: bool = False  # by SIGTERM; otherwise only workers that can stop in order


class Done(Message, frozen=True):
    """The workers have ended without failure."""


class WorkerEnded(Message, frozen=True):
    """How a rank has ended, after a failure."""

    end: End


class Failed(Message, frozen=True):
    """How the node has failed."""

    end: End


class Ended(Message, frozen=True):
    """The last message of an attempt: the exit code of the node's part."""

    code: ExitCode
    leaves: bool = False  # the agent takes no further assignment


FromLeader: TypeAlias = (
    Welcome
    | Assign
    | Connect
    | KeepConnection
    | ChoosePort
    | Start
    | Notice
    | Stop
    | Lost
    | Inspect
    | Released
    | Beat
)
FromAgent: TypeAlias = (
    Listening
    | Accepted
    | ChosenPort
    | Connected
    | Unreached
    | Broken
    | NodeReady
    | Note
    | File
    | NoProgress
    | WaitedInVain
    | Inspected
    | InspectedAll
    | Stopping
    | Done
    | WorkerEnded
    | Failed
    | Ended
    | Beat
)
Decode: TypeAlias = Callable[[bytes], Any]
from_leader: Decode = msgspec.json.Decoder(FromLeader).decode
from_agent: Decode = msgspec.json.Decoder(FromAgent).decode
from_stranger: Decode = msgspec.json.Decoder(Nonce | Introduction).decode
# The exceptions with which a decoder refuses data.
REFUSED = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class OddMessage(MusterError):
    """A message that the decoder or `check_sender` refuses; the text tells what is wrong."""


def odd(error: Exception, line: bytes) -> OddMessage:
    """The error for a line that a decoder has refused, which is its sender's failure."""
    text = line[:EXCERPT_CHARACTERS].decode(errors="replace")
    return OddMessage(f"{on_one_line(error)[:EXCERPT_CHARACTERS]}: {quoted(text)}")


def quoted(text: str) -> str:
    """The beginning of a text that a node has sent, in a printable form."""
    return ascii(text[:EXCERPT_CHARACTERS])[:EXCERPT_CHARACTERS]


def check_sender(message: FromAgent, assignment: Assignment) -> None:
    """Check that the agent with this assignment may send the message.

    Raises:
        OddMessage: the agent may not send it, for example because it is about another node's rank.
    """
    match message:
        case Listening() | Accepted() | ChosenPort():
            is_own = assignment.index == 0
        case Connected() | Unreached():
            is_own = assignment.index != 0
        case Inspected(report=about) | WorkerEnded(end=about):
            is_own = about.rank in assignment.ranks
        case Failed(end=end):
            is_own = end.rank is None
        case Stopping(within_s=seconds):
            is_own = seconds <= assignment.spec.stop_grace_s
        case _:
            is_own = True
    if not is_own:
        raise OddMessage(f"not of its own node: {on_one_line(message)[:EXCERPT_CHARACTERS]}")
