"""What one rank is doing, from its report: in which line and collective it is, and since when."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from launch.agent.processes.process_state import HELD_STATES, SLEEPS
from launch.nodes.messages import ChildReport, Collective, Frame, Group, InitCall, Report
from launch.runs.last_output import innermost_user_frame, is_of_muster

LEAVES = "_leave_together"  # the function in which a rank waits for the others to leave as well


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
    answers: bool  # itself; otherwise the kernel, faulthandler or a file that it left has answered
    status: str  # of its process, in psutil's words: running, sleeping, stopped, dead
    words: str
    user_frame: Frame | None = None  # the innermost of the user's own lines
    groups: Mapping[str, Group] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    clock_offset_s: float = 0.0  # to add to its node's clock to get the leader's
    ended: str = ""  # how it ended, if it has
    timed_out: bool = False  # it is ending, or has ended: others did not reach a collective in time
    lost_peer: bool = False  # it has ended because another rank was gone
    imports: bool = False  # its main thread is in an import
    is_command: bool = False  # not Python, or a Python without our handler
    children: tuple[ChildReport, ...] = ()  # child processes that do more than sleep
    init_call: InitCall | None = None  # if it is in `init_process_group`, or gave up there
    pid: int | None = None
    has_left: bool = False  # it is at the end of its `muster.init()` block

    @property
    def waiting(self) -> Collective | None:
        """The first collective in which it waits for others, or waited until its timeout."""
        if self.timed_out and self.collectives:
            return self.collectives[-1]
        return next((collective for collective in self.collectives if collective.waits), None)

    def arrivals(self, group: str) -> dict[int, float]:
        """When it reached each collective of a group, in Unix seconds of the leader's clock."""
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
        ages += (
            [self.user_frame.for_s] if self.user_frame and self.user_frame.for_s is not None else []
        )
        return min(ages) if ages else None

    @property
    def is_held(self) -> bool:
        return self.status in HELD_STATES

    @property
    def is_over(self) -> bool:
        """Whether its process has ended, with or without a record of how."""
        return bool(self.ended) or self.status in ("dead", "zombie")


def view_of(report: Report, node: str, exit_record: RankEnd | None = None) -> RankView:
    """Make the view of a rank from its report, which `local_workers.ask` has returned."""
    process = report.process
    main = next((thread.frames for thread in report.threads if thread.main), ())
    if report.gave_up is not None:
        main = report.gave_up.frames or main
    end: RankEnd = exit_record or {}
    return RankView(
        rank=report.rank,
        node=node,
        answers=report.answers,
        status=process.status if process else "dead",
        words=process.words if process else "",
        user_frame=innermost_user_frame(main, report.muster),
        groups=report.groups,
        collectives=report.collectives,
        clock_offset_s=report.clock_offset_s,
        ended=str(end.get("text", "")),
        timed_out=bool(report.gave_up or end.get("timed_out")),
        lost_peer=bool(end.get("lost_peer")),
        imports=any("<frozen importlib" in frame.file for frame in main),
        is_command=report.is_command,
        children=tuple(
            child
            for child in (process.children if process else ())
            if child.words != SLEEPS  # as most processes of a loader or pool do
        ),
        init_call=report.init_call,
        pid=report.pid,
        has_left=any(
            frame.function == LEAVES and is_of_muster(frame.file, report.muster) for frame in main
        ),
    )
