"""What one rank is doing, from its report: in which line and collective it is, and since when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from launch.agent.processes.process_state import HELD_STATES, SLEEPS
from launch.nodes.message_types import GaveUp, ProcessReport, Report
from launch.runs.last_output import Place, is_of_muster, own_place

LEAVES = "_leave_together"  # the function in which a rank waits for the others to leave, too


@dataclass(frozen=True)
class Collective:
    """One collective that a rank has begun."""

    group: str
    description: str
    number: int
    operation: str
    shapes: Sequence[Sequence[int]]
    types: Sequence[str]
    waits: bool  # the rank still waits in it
    age_s: float
    limit_s: float  # torch's timeout for it
    begun_unix_s: float = 0.0  # by its node's clock

    @property
    def name(self) -> str:
        return f"{self.operation} {self.number}"

    @property
    def shape(self) -> str:
        return " ".join(str(list(shape)) for shape in self.shapes)


@dataclass(frozen=True)
class Group:
    """One of torch's process groups, as a rank sees it."""

    ranks: Sequence[int] = ()  # empty: all
    begun: int = -1  # number of the last collective that this rank has begun in it


@dataclass(frozen=True)
class InitCall:
    """A rank's call of `init_process_group`: its arguments, and what it waits for."""

    rank: int | None
    world_size: int | None
    store: str  # the address to which it is connecting, or at which it waits for the others
    serves: bool  # this rank serves that store
    by_launcher: bool  # torchrun serves the store, and no rank does
    method: str  # the init_method


@dataclass(frozen=True)
class Child:
    """A process that a rank's program has started, and that does more than sleep."""

    pid: int
    words: str  # as of the rank itself


class RankEnd(TypedDict, total=False):
    """How a rank has ended, in a recorded inspection."""

    text: str
    node: str
    timed_out: bool
    lost_peer: bool


@dataclass(frozen=True)
class RankView:
    """What one rank is doing."""

    rank: int
    node: str
    answers: bool  # itself; otherwise all that follows is from the kernel or faulthandler
    status: str  # of its process, in psutil's words: running, sleeping, stopped, dead
    words: str
    place: Place | None = None  # the innermost of the user's own lines
    groups: Mapping[str, Group] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    clock_offset_s: float = 0.0  # to add to its node's clock to get the leader's
    ended: str = ""  # how it ended, if it has
    timed_out: bool = False  # it ends, or has ended, since others did not come to a collective
    lost_peer: bool = False  # it has ended because another rank was gone
    imports: bool = False  # its main thread is in an import
    is_command: bool = False  # not Python, or a Python without our handler
    children: tuple[Child, ...] = ()
    init_call: InitCall | None = None  # if it is in `init_process_group`, or gave up there
    pid: int | None = None
    has_left: bool = False  # it is at the end of the block of `muster.init()`

    @property
    def waiting(self) -> Collective | None:
        """The first collective in which it waits for others, or waited until its timeout."""
        if self.timed_out and self.collectives:
            return self.collectives[-1]
        return next((collective for collective in self.collectives if collective.waits), None)

    def arrivals(self, group: str) -> dict[int, float]:
        """When it came to each collective of a group, in Unix seconds of the leader's clock."""
        return {
            collective.number: collective.begun_unix_s + self.clock_offset_s
            for collective in self.collectives
            if collective.group == group
        }

    @property
    def for_s(self) -> float | None:
        """How long it has been in its place."""
        if self.waiting is not None:
            return self.waiting.age_s
        ages = [collective.age_s for collective in self.collectives[-1:]]
        ages += [self.place.for_s] if self.place and self.place.for_s is not None else []
        return min(ages) if ages else None

    @property
    def is_held(self) -> bool:
        return self.status in HELD_STATES

    @property
    def is_over(self) -> bool:
        """Whether its process has ended, with or without a record of how."""
        return bool(self.ended) or self.status in ("dead", "zombie")


def view_of(report: Report, node: str, exit_record: RankEnd | None = None) -> RankView:
    """The view of the rank that `report` is about, a report of `local_workers.ask`."""
    process: ProcessReport = report.get("process", {})
    threads = report.get("threads", [])
    main = next((thread["frames"] for thread in threads if thread.get("main")), [])
    gave_up: GaveUp = report.get("gave_up") or {}
    end: RankEnd = exit_record or {}
    main = gave_up.get("frames") or main
    init_call = report.get("meeting")
    muster = report.get("muster", "")
    return RankView(
        rank=int(report["rank"]),
        node=node,
        answers=bool(report.get("answers")),
        status=str(process.get("status", "dead")),
        words=str(process.get("words", "")),
        place=own_place(main, muster),
        groups={name: Group(**group) for name, group in report.get("groups", {}).items()},
        collectives=tuple(Collective(**collective) for collective in report.get("collectives", ())),
        clock_offset_s=float(report.get("clock_offset_s", 0.0)),
        ended=str(end.get("text", "")),
        timed_out=bool(gave_up or end.get("timed_out")),
        lost_peer=bool(end.get("lost_peer")),
        imports=any("<frozen importlib" in str(frame["file"]) for frame in main),
        is_command=bool(report.get("is_command")),
        children=tuple(
            Child(child["pid"], child["words"])
            for child in process.get("children", ())
            if child["words"] != SLEEPS  # as most processes of a loader or pool do
        ),
        init_call=InitCall(**init_call) if init_call else None,
        pid=report.get("pid"),
        has_left=any(
            frame["function"] == LEAVES and is_of_muster(str(frame["file"]), muster)
            for frame in main
        ),
    )
