"""How ranks, nodes and runs end, as values; and the one rule that chooses the cause among them.

A starter says how a worker has ended (`WorkerEnd`). The worker's agent joins that with the worker's
own record, and reports an `End`. An agent also reports what it could not do itself. The leader adds
what only the leader sees: an agent that is gone, a hang, a signal. Each `End` has its node's name
and a time by the leader's clock. `cause_of` gets all of them, in any order. `End.text` is the only
place that makes a sentence of an `End`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from muster.errors import STOPPED
from muster.printable import printable, signal_name
from muster.records import LAST_UNIX_S
from muster.worker.lost_peer import TIMED_OUT, is_lost_peer

# Limits of what is sent or recorded; longer texts lose their middle.
MESSAGE_CHARACTERS = 20_000
TRACEBACK_CHARACTERS = 60_000
NAME_CHARACTERS = 4_096
TEXT_LIMITS = {
    "node": NAME_CHARACTERS,
    "message": MESSAGE_CHARACTERS,
    "traceback": TRACEBACK_CHARACTERS,
    "address": NAME_CHARACTERS,
}
MOST_RANKS = 65_536
CUT = "\n... (shortened) ...\n"
ENDED_WELL = "its program had ended with exit code 0, and Python was ending"
# The causes in a worker's record that are no consequence of another rank's end.
OWN_CAUSES = ("refused", "crash", "exit", "signal")


@dataclass(frozen=True)
class WorkerEnd:
    """How the process of one rank ended, as its starter saw it."""

    rank: int
    exit_code: int | None  # None: a signal ended it
    signal: int | None
    time_unix_s: float  # its node's clock gives this time


@dataclass(frozen=True)
class StarterEnd:
    """How the process that had started a node's workers ended, such as torchrun's."""

    starter: str  # the value of `--workers`
    exit_code: int | None  # None: a signal ended it
    signal: int | None
    time_unix_s: float


class Kind(Enum):
    """What can end a rank, a node's part or a run; the name of a member is its name in JSON."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    # ends of a rank that no other end has caused
    RAISED = auto()  # its worker has recorded an exception
    EXITED = auto()  # it ended with an exit code other than 0
    INVALID = auto()  # it refused its settings, or its data
    KILLED = auto()  # a signal ended it; if the end has no rank: the starter of a node's ranks
    VANISHED = auto()  # it has no record, and nobody has seen how it ended
    STOPPED = auto()  # it stopped in order, on request
    DONE = auto()  # it ended with exit code 0
    # ends of a rank that other ends have caused
    LOST_PEER = auto()
    TIMED_OUT = auto()  # it waited for another rank in vain
    TOLD = auto()  # it was sent a signal, and recorded that
    ENDED = auto()  # its agent ended it, and it has recorded nothing
    # ends of a node's part
    STARTER = auto()  # its starter ended with an exit code, as torchrun after its workers
    NOT_STARTED = auto()  # its starter ended with an exit code before it had any worker
    REFUSED = auto()  # nothing could be started: there is no such program, or a prologue failed
    SIGNAL = auto()  # its agent was sent a signal; if the end has no node: the leader was
    TIME_UP = auto()  # the scheduler has announced the end of the job's time
    GONE = auto()  # the connection to its agent is closed
    SILENT = auto()  # nothing came from its agent
    APART = auto()  # it does not reach the others, or its agent says that it lost one of them
    ODD = auto()  # its agent sent something that is no message
    LAUNCHER = auto()  # its agent has lost its leader
    FULL = auto()  # the run folder's disk is full
    # ends of a run
    HANG = auto()
    TIMEOUT = auto()  # ranks waited in a collective in vain, and all ranks were inspected
    JOB = auto()  # the scheduler reported how its job ended
    OTHER = auto()  # only an agent's message says why, as in records of earlier versions

    @property
    def word(self) -> str:
        """The cause in exit.json, as docs/automation.md explains it."""
        return WORDS[self]


NODE_LOST = "node_lost"
OUT_OF_MEMORY = "out_of_memory"
DISK_FULL = "disk_full"
WORDS = {
    **dict.fromkeys((Kind.RAISED, Kind.EXITED, Kind.INVALID), "program"),
    **dict.fromkeys((Kind.KILLED, Kind.VANISHED), "killed"),
    **dict.fromkeys((Kind.GONE, Kind.SILENT, Kind.APART, Kind.ODD), NODE_LOST),
    **dict.fromkeys((Kind.LOST_PEER, Kind.TIMED_OUT, Kind.TOLD), "peer_lost"),
    **dict.fromkeys((Kind.TIMEOUT, Kind.ENDED), "timeout"),
    **dict.fromkeys((Kind.SIGNAL, Kind.TIME_UP), "signal"),
    **dict.fromkeys((Kind.JOB, Kind.LAUNCHER), "job"),
    **dict.fromkeys((Kind.STARTER, Kind.OTHER), "failed"),
    Kind.NOT_STARTED: "not_started",
    Kind.REFUSED: "refused",
    Kind.STOPPED: "stopped",
    Kind.DONE: "left_early",
    Kind.HANG: "hang",
    Kind.FULL: DISK_FULL,
}


ExitCode = Annotated[int, Meta(ge=0, lt=256)]
RankNumber = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS)]


class End(Struct, frozen=True, forbid_unknown_fields=True):
    """One end of a rank; of a node's part, if `rank` is None; of the run, if `node` is empty.

    Agents send it, and records of the run folder have it. Its texts can be printed, and those that
    are too long lose their middle.
    """

    kind: Kind
    node: Name  # in Muster; "" is the leader
    time_unix_s: Annotated[float, Meta(ge=0, le=LAST_UNIX_S)]  # by the leader's clock
    rank: RankNumber | None = None
    code: ExitCode = 1  # the exit code that the run gets from this end, if no signal ended it
    signal: Annotated[int, Meta(gt=0, lt=128)] | None = None
    # an exception's words, a refusal's lines, a starter's name
    message: Annotated[str, Meta(max_length=MESSAGE_CHARACTERS)] = ""
    traceback: Annotated[str, Meta(max_length=TRACEBACK_CHARACTERS)] = ""
    address: Name = ""  # of a lost node
    # that a starter had started
    ranks: Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_RANKS)] = ()

    def __post_init__(self) -> None:
        for name, limit in TEXT_LIMITS.items():
            force_setattr(self, name, shortened(printable(getattr(self, name)), limit))

    @property
    def is_failure(self) -> bool:
        return self.kind not in (Kind.DONE, Kind.STOPPED)

    @property
    def is_recorded(self) -> bool:
        """Whether its worker has recorded it itself."""
        return self.rank is not None and self.kind not in (Kind.KILLED, Kind.ENDED, Kind.VANISHED)

    @property
    def lacks_reason(self) -> bool:
        """Whether only an exit code is known: the worker's record is missing."""
        return self.kind is Kind.EXITED and not self.message

    @property
    def exit_code(self) -> int:
        """The exit code of the run, which is never 0."""
        return (self.code if self.signal is None else 128 + self.signal) % 256 or 1

    @property
    def text(self) -> str:
        """The sentence that is printed about this end, without its traceback."""
        who = f"rank {self.rank} on {self.node}"
        place = f"{self.node} ({self.address})" if self.address else self.node
        name = "" if self.signal is None else signal_name(self.signal)
        match self.kind:
            case Kind.EXITED:
                return f"{who}: {self.message or f'exit code {self.code}'}"
            case Kind.KILLED if self.rank is not None:
                why = f"; {self.message}" if self.message else ""
                return f"{who} was killed by {name}{why}"
            case Kind.KILLED:
                of = f" ({named(self.ranks)})" if self.ranks else ""
                return f"{self.message} on {self.node} was killed by {name}{of}"
            case Kind.STARTER | Kind.NOT_STARTED if self.node:
                return f"{self.message} on {self.node} ended with exit code {self.code}"
            case Kind.ENDED:
                return f"{who} {self.message or 'hung'}"
            case Kind.TOLD:
                return f"{who}: {self.message}"
            case Kind.SIGNAL:
                return f"{self.node} was sent {name}" if self.node else f"stopped by {name}"
            case Kind.TIME_UP:
                return f"{self.node}: the time of its job is nearly up"
            case Kind.GONE:
                return (
                    f"{place} is gone: its agent was killed, or the node went down, or the "
                    "connection to it was cut"
                )
            case Kind.SILENT:
                return f"heard nothing from {place} for {self.message}: is its link down?"
            case Kind.ODD:
                return f"{place} sent an odd message: {self.message}"
            case Kind.LAUNCHER:
                return f"{self.node} {self.message or 'lost its launcher'}"
        return self.message

    @property
    def line(self) -> str:
        """One line about this end, for agents of other nodes."""
        text = self.text.partition("\n")[0]
        who = f"rank {self.rank} on {self.node}"
        return text if self.rank is None or text.startswith(who) else f"{who}: {text}"

    def to_json(self) -> dict[str, Any]:
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, raw: object) -> "End | None":
        """The end that `to_json` has made into `raw`; None if `raw` is anything else."""
        try:
            return msgspec.convert(raw, cls)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return None


# These kinds of ends are causes: no other end has caused them.
PRIMARY_KINDS = frozenset(
    {
        *(Kind.RAISED, Kind.EXITED, Kind.INVALID, Kind.KILLED, Kind.REFUSED, Kind.SIGNAL),
        *(Kind.TIME_UP, Kind.GONE, Kind.SILENT, Kind.APART, Kind.ODD, Kind.HANG, Kind.TIMEOUT),
    }
)
LOSS_KINDS = frozenset({Kind.GONE, Kind.SILENT})
SIGNAL_KINDS = frozenset({Kind.SIGNAL, Kind.TIME_UP})
PEER_KINDS = frozenset({Kind.LOST_PEER, Kind.TIMED_OUT, Kind.TOLD})
NO_KINDS: frozenset[Kind] = frozenset()


def cause_of(ends: Iterable[End], nodes: Collection[str] = ()) -> End | None:
    """The end that is the cause of all others, in whatever order they come; None: there is none.

    An end that no other end has caused comes before the end of a rank that lost another one. Among
    ends of one group, the earliest is the cause. `nodes`: all nodes of the run. A signal to each of
    them is a signal to the run.
    """
    all_ends = set(ends)
    full = {end.node for end in all_ends if end.kind is Kind.FULL}  # "": the leader's disk
    all_ends = {  # on a full disk the record with the reason had no space
        end for end in all_ends if not (end.lacks_reason and full & {end.node, ""})
    }
    for kinds in _groups(frozenset(end.kind for end in all_ends)):
        if of_group := [end for end in all_ends if end.kind in kinds]:
            cause = min(of_group, key=_order)
            signalled = {end.node for end in all_ends if end.kind is Kind.SIGNAL}
            is_to_all = cause.kind is Kind.SIGNAL and bool(nodes) and signalled >= set(nodes)
            return replace(cause, node="") if is_to_all else cause
    return None


def _groups(kinds: frozenset[Kind]) -> tuple[frozenset[Kind], ...]:
    """Groups of kinds, in order: an end of the first group that occurs in `kinds` is the cause."""
    return (
        # a scheduler sends signals to all others when it has lost a node, or ends the job
        PRIMARY_KINDS - (SIGNAL_KINDS if kinds & (LOSS_KINDS | {Kind.JOB}) else NO_KINDS),
        frozenset({Kind.FULL}),  # perhaps the disk had no space for the record of another cause
        frozenset({Kind.VANISHED}),
        # if others waited in vain, they waited for the rank that its agent had to end; that a
        # rank recorded a signal is a weaker sign
        frozenset({Kind.ENDED}) if Kind.TIMED_OUT in kinds else NO_KINDS,
        frozenset({Kind.TOLD}) if Kind.TIMED_OUT in kinds else NO_KINDS,
        frozenset({Kind.NOT_STARTED}),
        frozenset({Kind.JOB}),
        frozenset({Kind.LAUNCHER}),
        frozenset({Kind.DONE}) if kinds & PEER_KINDS else NO_KINDS,  # others needed it, and lost it
        PEER_KINDS,
        frozenset({Kind.STOPPED}),
        frozenset({Kind.STARTER, Kind.OTHER}),
        frozenset(Kind),
    )


def _order(end: End) -> tuple[float, int, str]:
    """Sort by time; at equal times the order is still always the same."""
    return end.time_unix_s, -1 if end.rank is None else end.rank, repr(end)


def end_of_worker(
    node: str,
    rank: int,
    record: dict[str, Any] | None,
    process: WorkerEnd | None = None,
    clock_offset_s: float = 0.0,
) -> End | None:
    """The end of a rank, from its worker's record of it, and from how its process has ended.

    `record`: the content of exits/rank_*.json. Returns None where neither says that it has ended.
    """
    if process is not None and (record is None or record["cause"] == "done"):
        time_unix_s = on_leaders_clock(process.time_unix_s, clock_offset_s)
        if process.signal is not None:
            message = "" if record is None else ENDED_WELL
            return End(Kind.KILLED, node, time_unix_s, rank, signal=process.signal, message=message)
        code = (process.exit_code or 0) % 256
        if record is None or code:
            kind = {0: Kind.DONE, STOPPED: Kind.STOPPED}.get(code, Kind.EXITED)
            return End(kind, node, time_unix_s, rank, code)
    if record is None:
        return None
    return End(
        _kind_of(record),
        node,
        on_leaders_clock(record["time_unix_s"], clock_offset_s),
        rank,
        record["code"],
        message=record["message"],
        traceback=record["traceback"],
    )


def reclassified(record: dict[str, Any]) -> dict[str, Any]:
    """A worker's record, in which a crash because of a lost rank is made a consequence."""
    is_consequence = record["cause"] == "crash" and is_lost_peer(record["message"])
    return {**record, "cause": "lost_peer"} if is_consequence else record


def _kind_of(record: dict[str, Any]) -> Kind:
    """The kind of end that a worker has recorded."""
    cause = reclassified(record)["cause"]
    if cause == "lost_peer":
        return Kind.TIMED_OUT if TIMED_OUT.search(record["message"]) else Kind.LOST_PEER
    if cause == "signal":  # KeyboardInterrupt is an exception
        return Kind.RAISED if record["traceback"] else Kind.TOLD
    kinds = {"crash": Kind.RAISED, "exit": Kind.EXITED, "refused": Kind.INVALID}
    return {**kinds, "done": Kind.DONE, "stopped": Kind.STOPPED}.get(cause, Kind.TOLD)


def on_leaders_clock(time_unix_s: float, clock_offset_s: float) -> float:
    return min(max(time_unix_s + clock_offset_s, 0.0), LAST_UNIX_S)


def named(ranks: Iterable[int]) -> str:
    """`rank 2`, or `ranks 2, 3`."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"


def shortened(text: str, limit: int) -> str:
    """`text` without its middle, if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - len(CUT)) // 2
    return f"{text[:half]}{CUT}{text[-half:]}"
