"""How ranks, nodes and runs end, as values; and the one rule that chooses the cause among them.

A starter reports how a worker has ended (`WorkerEnd`). The worker's agent combines that with the
worker's own record, and reports an `End`. An agent also reports what it could not do itself. The
leader adds what only the leader sees: an agent that is gone, a hang, a signal. Each `End` has its
node's name and a time by the leader's clock. `cause_of` gets all ends, in any order. `OUTCOMES` is
the table of the kinds of ends, with their sentences, the words for `exit.json`, and the states of
runs.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

from muster.errors import STOPPED, name_of
from muster.orderly_stop import ALSO_STOP, STOP_SIGNALS
from muster.printable import printable, signal_name
from muster.records import LAST_UNIX_S
from muster.worker.lost_peer import TIMED_OUT, is_lost_peer

# Limits for texts that are sent or recorded; longer texts lose their middle.
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
# The causes in a worker's record that are not a consequence of another rank's end.
OWN_CAUSES = ("refused", "crash", "exit", "signal")


@dataclass(frozen=True)
class WorkerEnd:
    """How the process of one rank ended, as its starter saw it."""

    rank: int
    exit_code: int | None  # None: a signal ended it
    signal: int | None
    time_unix_s: float  # by its node's clock


@dataclass(frozen=True)
class StarterEnd:
    """How the process that had started a node's workers ended, such as torchrun's."""

    starter: str  # the value of `--workers`
    exit_code: int | None  # None: a signal ended it
    signal: int | None
    time_unix_s: float


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


class Kind(Enum):
    """What can end a rank, a node's part or a run; the name of a member is its name in JSON."""

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name

    # ends of a rank
    PROGRAM = auto()  # its program raised an error, refused its input, or exited with another code
    KILLED = auto()  # a signal ended it or, if the end has no rank, the starter of a node's ranks
    UNRECORDED = auto()  # it has no record; with a message, its agent found it so, and ended it
    LOST_PEER = auto()  # it lost another rank; with a signal, it was sent that, and recorded it
    STOPPED = auto()  # it stopped cleanly, on request
    DONE = auto()  # it ended with exit code 0
    # ends of a node's part
    REFUSED = auto()  # nothing could be started: there is no such program, or a prologue failed
    NOT_STARTED = auto()  # its starter ended with an exit code before it had any worker
    FAILED = auto()  # its starter ended, as torchrun does after its workers; or see its message
    # its agent (or the leader, if there is no node) was sent a signal; with a message, the
    # scheduler has announced the end of the job's time
    SIGNAL = auto()
    NODE_LOST = auto()  # its agent is gone, sent an invalid message, or does not reach others
    FULL = auto()  # the run folder's disk is full
    # ends of a run
    HANG = auto()
    TIMEOUT = auto()  # ranks waited in a collective in vain, and all ranks were inspected
    JOB = auto()  # the scheduler reported how its job ended; with a node, its agent lost its leader

    @property
    def word(self) -> str:
        """The cause in exit.json, as docs/automation.md explains it."""
        return OUTCOMES[self].word

    @property
    def state(self) -> str:
        """The state of a run that this has ended: `failed`, or `stopped`."""
        return OUTCOMES[self].state

    @property
    def can_be_consequence(self) -> bool:
        """Whether another end may have caused it."""
        return OUTCOMES[self].can_be_consequence

    @property
    def example(self) -> "End":
        return OUTCOMES[self].example


# What earlier versions recorded: the kinds of ends, and before that the causes of agents' ends.
OLD_KINDS = {
    **dict.fromkeys(("RAISED", "EXITED", "INVALID"), Kind.PROGRAM),
    **dict.fromkeys(("VANISHED", "ENDED"), Kind.UNRECORDED),
    **dict.fromkeys(("TIMED_OUT", "TOLD"), Kind.LOST_PEER),
    **dict.fromkeys(("STARTER", "OTHER"), Kind.FAILED),
    **dict.fromkeys(("GONE", "SILENT", "APART", "ODD"), Kind.NODE_LOST),
    **dict.fromkeys(("LAUNCHER", "launcher"), Kind.JOB),
    **dict.fromkeys(("TIME_UP", "signal"), Kind.SIGNAL),
    "refused": Kind.REFUSED,
}
OLD_MESSAGES = {  # of ends whose message was only a part of their sentence
    "SILENT": "no message from {end.node_label} for {end.message}: is its network link down?",
    "ODD": "{end.node_label} sent an invalid message: {end.message}",
    "TIME_UP": "{end.node}: its job has nearly reached its time limit",
}
OUT_OF_MEMORY = "out_of_memory"  # the cause of ends of several kinds, by their texts


ExitCode = Annotated[int, Meta(ge=0, lt=256)]
RankNumber = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
Name = Annotated[str, Meta(max_length=NAME_CHARACTERS)]


class End(Struct, frozen=True, forbid_unknown_fields=True):
    """The end of a rank; of a node's part, if `rank` is None; of the run, if `node` is empty.

    Agents send it, and records in the run folder contain it. Its texts can be printed, and texts
    that are too long lose their middle.
    """

    kind: Kind
    node: Name  # its name in Muster; "" is the leader
    time_unix_s: Annotated[float, Meta(ge=0, le=LAST_UNIX_S)]  # by the leader's clock
    rank: RankNumber | None = None
    code: ExitCode = 1  # the exit code that the run gets from this end, if no signal ended it
    signal: Annotated[int, Meta(gt=0, lt=128)] | None = None
    # an exception's text, a refusal's lines, or a starter's name
    message: Annotated[str, Meta(max_length=MESSAGE_CHARACTERS)] = ""
    traceback: Annotated[str, Meta(max_length=TRACEBACK_CHARACTERS)] = ""
    address: Name = ""  # of a lost node
    # the ranks that a starter had started
    ranks: Annotated[tuple[RankNumber, ...], Meta(max_length=MOST_RANKS)] = ()

    def __post_init__(self) -> None:
        for name, limit in TEXT_LIMITS.items():
            force_setattr(self, name, shortened(printable(getattr(self, name)), limit))

    @property
    def is_failure(self) -> bool:
        return self.kind not in (Kind.DONE, Kind.STOPPED)

    @property
    def is_recorded(self) -> bool:
        """Whether the worker itself has recorded this end."""
        return self.rank is not None and self.kind not in (Kind.KILLED, Kind.UNRECORDED)

    @property
    def lacks_reason(self) -> bool:
        """Whether only an exit code is known: the worker's record is missing."""
        return self.kind is Kind.PROGRAM and not self.message

    @property
    def waited_in_vain(self) -> bool:
        """Whether this is a rank that waited for another one until a timeout."""
        is_loss = self.kind is Kind.LOST_PEER and self.signal is None
        return is_loss and TIMED_OUT.search(self.message) is not None

    @property
    def was_ended(self) -> bool:
        """Whether this is a rank that was ended by a signal that agents send, recorded or not."""
        if self.kind is Kind.UNRECORDED:
            return bool(self.message)
        return self.kind is Kind.LOST_PEER and self.signal is not None

    @property
    def was_signalled(self) -> bool:
        """Whether a node was sent a signal, and not only told that its time is nearly up."""
        return self.kind is Kind.SIGNAL and not self.message

    @property
    def is_of_scheduler(self) -> bool:
        """Whether the scheduler has reported it."""
        return self.kind is Kind.JOB and not self.node

    @property
    def exit_code(self) -> int:
        """The exit code of the run, which is never 0."""
        return (self.code if self.signal is None else 128 + self.signal) % 256 or 1

    @property
    def node_label(self) -> str:
        """The node, with its address if that is known."""
        return f"{self.node} ({self.address})" if self.address else self.node

    @property
    def text(self) -> str:
        """The sentence that is printed about this end, without its traceback."""
        fields = {
            "rank": "" if self.rank is None else f"rank {self.rank} on {self.node}",
            "node": self.node,
            "place": self.node_label,
            "code": str(self.code),
            "signal": "" if self.signal is None else signal_name(self.signal),
            "message": self.message,
            "starter": self.message if self.ranks else "",
            "ranks": named(self.ranks) if self.ranks else "",
        }
        known = {name: value for name, value in fields.items() if value}
        for sentence in OUTCOMES[self.kind].sentences:
            with suppress(KeyError):
                return sentence.format_map(known)
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
        """The end from which `to_json`, perhaps of an earlier version, made `raw`; or None."""
        kind = ""
        if isinstance(raw, dict) and isinstance(raw.get("kind"), str):
            kind = raw["kind"]
            raw = {**raw, "kind": OLD_KINDS[kind].name if kind in OLD_KINDS else kind}
        try:
            end = msgspec.convert(raw, cls)
        except (msgspec.ValidationError, UnicodeEncodeError):
            return None
        if kind == "TOLD" and end.code > 128:
            return replace(end, signal=end.code - 128)
        if kind in OLD_MESSAGES:
            return replace(end, message=OLD_MESSAGES[kind].format(end=end))
        return end


class Outcome(NamedTuple):
    """One kind of end, with an example."""

    example: End
    word: str  # the cause in exit.json
    # the first one whose fields the end has is used; if there is none, the end's message
    sentences: tuple[str, ...] = ()
    can_be_consequence: bool = False  # of another end
    state: str = "failed"  # of a run with this cause


WHY_GONE = "its agent was killed, the node went down, or the connection was lost"
STARTER_ENDED = "{starter} on {node} ended with exit code {code}"
OUTCOMES = {outcome.example.kind: outcome for outcome in (
    Outcome(
        End(Kind.PROGRAM, "node0", 6.0, 0, message="ValueError: 7"), "program",
        ("{rank}: {message}", "{rank}: exit code {code}"),
    ),
    Outcome(
        End(Kind.KILLED, "node1", 5.0, 2, signal=9), "killed",
        (
            "{rank} was killed by {signal}; {message}",
            "{rank} was killed by {signal}",
            "{message} on {node} was killed by {signal} ({ranks})",
            "{message} on {node} was killed by {signal}",
        ),
    ),
    Outcome(
        End(Kind.UNRECORDED, "node1", 0.0, 2), "killed",
        ("{rank} {message}", "{rank} ended without a message"), can_be_consequence=True,
    ),
    Outcome(
        End(Kind.LOST_PEER, "node2", 1.0, 4, message="Timed out waiting 3000ms"), "peer_lost",
        ("{rank}: {message}",), can_be_consequence=True,
    ),
    Outcome(
        End(Kind.STOPPED, "node0", 8.0, 0, STOPPED, message="stopped cleanly after step 3"),
        "stopped", can_be_consequence=True, state="stopped",
    ),
    Outcome(End(Kind.DONE, "node0", 9.0, 0, 0), "left_early", can_be_consequence=True),
    Outcome(End(Kind.REFUSED, "node0", 2.0, code=2, message="there is no program x"), "refused"),
    Outcome(
        End(Kind.NOT_STARTED, "node0", 3.0, message="torchrun", ranks=(0, 1)), "not_started",
        (STARTER_ENDED,), can_be_consequence=True,
    ),
    Outcome(
        End(Kind.FAILED, "node2", 4.0, message="torchrun", ranks=(4, 5)), "failed",
        (STARTER_ENDED,), can_be_consequence=True,
    ),
    Outcome(
        End(Kind.SIGNAL, "node0", 2.0, signal=15), "signal",
        ("{message}", "{node} was sent {signal}", "stopped by {signal}"), state="stopped",
    ),
    Outcome(
        End(Kind.NODE_LOST, "node1", 7.0, address="10.0.0.2"), "node_lost",
        ("{message}", f"lost contact with {{place}}: {WHY_GONE}"),
    ),
    Outcome(
        End(Kind.FULL, "", 9.0, message="node0: /logs: the disk is full"), "disk_full",
        can_be_consequence=True,
    ),
    Outcome(End(Kind.HANG, "", 9.0, message="no progress for 10 min"), "hang"),
    Outcome(End(Kind.TIMEOUT, "", 9.0, message="rank 2 has not reached all_reduce"), "timeout"),
    Outcome(
        End(Kind.JOB, "", 9.0, message="Slurm reports NODE_FAIL for job 7"), "job",
        ("{node} {message}", "{message}", "{node} lost its connection to the launcher"),
        can_be_consequence=True,
    ),
)}  # fmt: skip
STATES = {outcome.word: outcome.state for outcome in OUTCOMES.values()}
# Somebody wanted the run to end. Another signal, such as SIGSEGV, is a failure.
STOPPED_BY_SIGNAL = tuple(128 + number for number in (*STOP_SIGNALS, *ALSO_STOP))


def state_word(code: int, cause: str = "") -> str:
    """`done`, `stopped` or `failed`: the state of a run with this exit code and recorded cause.

    `cause`: "" if none was recorded.
    """
    word = cause or name_of(code)
    # a program may exit with a signal's code of its own accord
    if code == 0 or (word == "signal" and code not in STOPPED_BY_SIGNAL):
        return "failed" if code else "done"
    return STATES.get(word, "failed")


def _any(end: End) -> bool:
    return True


class Step(NamedTuple):
    """Ends like `example`; the earliest is the cause if no earlier step matches any end."""

    example: End
    where: Callable[[End], bool] = _any  # which ends of this kind
    beside: Callable[[End], bool] = _any  # the step counts only if there is also such an end

    def matching_ends(self, ends: Collection[End]) -> list[End]:
        if not any(map(self.beside, ends)):
            return []
        return [end for end in ends if end.kind is self.example.kind and self.where(end)]


# The cause among ends that may be consequences.
STEPS = (
    # perhaps the disk had no space for the record of another cause
    Step(Kind.FULL.example),
    Step(Kind.UNRECORDED.example, where=lambda end: not end.was_ended),
    # if others waited in vain, they waited for the rank that its agent had to end; a rank that
    # recorded a signal is a weaker sign
    Step(
        End(Kind.UNRECORDED, "node3", 0.0, 6, message="was waiting for a disk or a file server"),
        where=lambda end: end.was_ended,
        beside=lambda end: end.waited_in_vain,
    ),
    Step(
        End(Kind.LOST_PEER, "node3", 2.0, 7, 143, signal=15, message="stopped by SIGTERM"),
        where=lambda end: end.was_ended,
        beside=lambda end: end.waited_in_vain,
    ),
    Step(Kind.NOT_STARTED.example),
    Step(Kind.JOB.example, where=lambda end: end.is_of_scheduler),
    Step(End(Kind.JOB, "node2", 3.0, message="lost its connection to the launcher")),
    # others needed it, and lost it
    Step(Kind.DONE.example, beside=lambda end: end.kind is Kind.LOST_PEER),
    Step(Kind.LOST_PEER.example),
    Step(Kind.STOPPED.example),
    Step(Kind.FAILED.example),
    Step(End(Kind.UNRECORDED, "node3", 0.0, 6, message="hung")),
    Step(Kind.DONE.example),
)


def cause_of(ends: Iterable[End], nodes: Collection[str] = ()) -> End | None:
    """The end that is the cause of all others, whatever their order; None if there is none.

    Ends that no other end can have caused are considered first, and then the ends that match each
    of `STEPS` in turn. The earliest end of the first group that is not empty is the cause. `nodes`:
    all nodes of the run. A signal to each of them is a signal to the run.
    """
    all_ends = set(ends)
    full = {end.node for end in all_ends if end.kind is Kind.FULL}  # "": the leader's disk
    all_ends = {  # on a full disk the record with the reason had no space
        end for end in all_ends if not (end.lacks_reason and full & {end.node, ""})
    }
    if any(end.kind is Kind.NODE_LOST or end.is_of_scheduler for end in all_ends):
        # a scheduler sends signals to all others when it has lost a node, or ends the job
        all_ends = {end for end in all_ends if end.kind is not Kind.SIGNAL}
    own = [end for end in all_ends if not end.kind.can_be_consequence]
    candidates = next(filter(None, (own, *(step.matching_ends(all_ends) for step in STEPS))), None)
    if candidates is None:
        return None
    cause = min(candidates, key=_order)
    signalled = {end.node for end in all_ends if end.was_signalled}
    is_to_all = cause.was_signalled and bool(nodes) and signalled >= set(nodes)
    return replace(cause, node="") if is_to_all else cause


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

    `record`: the content of exits/rank_*.json. Returns None if neither shows that it has ended.
    """
    if process is not None and (record is None or record["cause"] == "done"):
        time_unix_s = on_leaders_clock(process.time_unix_s, clock_offset_s)
        if process.signal is not None:
            message = "" if record is None else ENDED_WELL
            return End(Kind.KILLED, node, time_unix_s, rank, signal=process.signal, message=message)
        code = (process.exit_code or 0) % 256
        if record is None or code:
            kind = {0: Kind.DONE, STOPPED: Kind.STOPPED}.get(code, Kind.PROGRAM)
            return End(kind, node, time_unix_s, rank, code)
    if record is None:
        return None
    code = record["code"]
    kind = _kind_of(record)
    was_told = kind is Kind.LOST_PEER and record["cause"] == "signal" and code > 128
    return End(
        kind,
        node,
        on_leaders_clock(record["time_unix_s"], clock_offset_s),
        rank,
        code,
        code - 128 if was_told else None,
        record["message"],
        record["traceback"],
    )


def reclassified(record: dict[str, Any]) -> dict[str, Any]:
    """A worker's record, in which a crash caused by a lost rank is turned into a consequence."""
    is_consequence = record["cause"] == "crash" and is_lost_peer(record["message"])
    return {**record, "cause": "lost_peer"} if is_consequence else record


def _kind_of(record: dict[str, Any]) -> Kind:
    """The kind of end that a worker has recorded."""
    cause = reclassified(record)["cause"]
    if cause == "signal" and record["traceback"]:  # KeyboardInterrupt is an exception
        return Kind.PROGRAM
    of_program = dict.fromkeys(("crash", "exit", "refused"), Kind.PROGRAM)
    return {**of_program, "done": Kind.DONE, "stopped": Kind.STOPPED}.get(cause, Kind.LOST_PEER)


def on_leaders_clock(time_unix_s: float, clock_offset_s: float) -> float:
    return min(max(time_unix_s + clock_offset_s, 0.0), LAST_UNIX_S)
