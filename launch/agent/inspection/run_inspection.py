"""The leader passes requests from the run folder to all agents, and joins their answers."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypedDict

import msgspec

from launch.agent.inspection import diagnosis
from launch.agent.inspection.rank_view import RankEnd, RankView, view_of
from launch.deadlines import AGENTS_ANSWER_INSPECTION_S, HANG_AT_LEAST_S
from launch.ends import End
from launch.nodes.channel import running_s
from launch.nodes.messages import (
    Inspect,
    Inspected,
    InspectedAll,
    Message,
    NoProgress,
    Report,
    WaitedInVain,
)
from launch.runs.end_facts import hang_end, read_exits, timeout_end
from launch.runs.log_tail import Request, RequestFile
from launch.spec import LaunchSpec
from muster.printable import duration
from muster.run_files import STACKS
from muster.worker.lost_peer import TIMED_OUT
from muster.writing import CannotWrite, write_json

OWN_REASONS = ("timeout", "hang")  # reasons for an inspection that nobody has requested
# A pause is too long if it exceeds both `HANG_AT_LEAST_S` and this many times the longest earlier
# pause.
PAUSES = 10


class Findings(TypedDict, total=False):
    """A recorded inspection: the answers, and what they mean."""

    time_unix_s: float
    run: str
    reports: list[Report]
    node_of: dict[str, str]  # by rank
    lost: dict[str, str]  # why a node does not answer, by name
    ends: dict[str, RankEnd]  # by rank
    sentences: list[str]
    on_hang: str
    text: str


@dataclass
class Gathering:
    """The answers of all agents to one question."""

    name: str
    began: float = field(default_factory=running_s)
    reports: dict[int, Report] = field(default_factory=dict)
    node_of: dict[int, str] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)


class RunInspection:
    """The inspection of a run with agents on these nodes; `send` reaches all of them."""

    def __init__(
        self,
        spec: LaunchSpec,  # has the limit for a hang, and what to do then
        nodes: Sequence[str],
        requests: RequestFile,  # each request in it is passed to `begin`
        send: Callable[[Message], None],
        print_line: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._run_dir = spec.run_dir
        self._nodes = nodes
        self._requests = requests
        self._send = send
        self._print_line = print_line
        # by agent: for how long no worker has made progress, and when the agent reported that
        self._still: dict[int, tuple[NoProgress, float]] = {}
        self._waits: dict[int, str] = {}  # by agent that cannot answer: what it is waiting for
        self.hang: End | None = None  # a hang that must end the run
        # the record of ranks that have waited in a collective in vain
        self._timeout: dict[str, object] = {}
        self._gatherings: dict[str, Gathering] = {}
        self.findings_of: dict[str, list[str]] = {}  # the sentences, by reason
        self._is_pause_too_long = False

    def tick(self, *, is_ending: bool = False) -> None:
        """Conclude each question that all agents have answered, or whose time is over.

        `is_ending`: the workers are being ended, which is neither a hang nor progress.
        """
        if not is_ending:
            self._look_for_hang()
        for name, gathering in list(self._gatherings.items()):
            late = running_s() - gathering.began > AGENTS_ANSWER_INSPECTION_S
            if name != "end" and (late or len(gathering.complete) == len(self._nodes)):
                self._conclude(self._gatherings.pop(name))

    def begin(self, request: Request) -> None:
        """Pass a request on to the agents."""
        if request.ask == "stacks":
            self._ask(request.id)

    def note_wait(self, index: int, what: str) -> None:
        """Note what an agent is waiting for ("": nothing); meanwhile it sees no progress."""
        if not what:
            self._waits.pop(index, None)
            return
        self._waits[index] = what
        if index in self._still:
            self._still[index] = (self._still[index][0], running_s())

    def take(
        self, index: int, message: NoProgress | WaitedInVain | Inspected | InspectedAll
    ) -> None:
        """Take an agent's answer."""
        match message:
            case NoProgress():
                self._still[index] = (message, running_s())
            case WaitedInVain():
                self._look("timeout")
            case Inspected(name, report):
                if (gathering := self._gathering(name)) is not None:
                    gathering.reports[report.rank] = report
                    gathering.node_of[report.rank] = self._nodes[index]
            case InspectedAll(name):
                if (gathering := self._gathering(name)) is not None:
                    gathering.complete.add(index)

    def _gathering(self, name: str) -> Gathering | None:
        """The answers to a question; the answers about the end come without a question."""
        if name == "end":
            return self._gatherings.setdefault(name, Gathering(name))
        return self._gatherings.get(name)

    def _look(self, why: str) -> None:
        """Ask all agents for one of `OWN_REASONS`; if already done, let waiting workers go on."""
        if why in self.findings_of:
            self._send(Inspect(why, "resume"))
        elif why not in self._gatherings:
            self._ask(why)

    def _ask(self, name: str) -> None:
        self._gatherings[name] = Gathering(name)
        self._send(Inspect(name, "stacks"))

    def _look_for_hang(self) -> None:
        """Ask all agents what their workers are doing, once in each pause that is too long."""
        if len(self._still) < len(self._nodes) or self._spec.hang_after_s == 0:
            return
        if self.hang is not None:  # the run is being ended because of a hang: workers change
            return
        still_s = self._still_s()
        pause_s = max(still.longest_pause_s for still, _ in self._still.values())
        limit_s = self._spec.hang_after_s or max(HANG_AT_LEAST_S, PAUSES * pause_s)
        if still_s > limit_s and not self._is_pause_too_long:
            self._is_pause_too_long = True
            self.findings_of.pop("hang", None)
            self._look("hang")
        elif self._is_pause_too_long and still_s < limit_s / 2:
            self._is_pause_too_long = False
            if "hang" in self.findings_of:
                self._print_line("the run is making progress again")

    def _still_s(self) -> float:
        """Seconds since an agent last saw progress."""
        now = running_s()
        return min(still.still_s + now - at_s for still, at_s in self._still.values())

    def _announce(self, findings: Findings) -> None:
        text = f"no progress for {duration(self._still_s())}: {findings['sentences'][0]}"
        every_rank = f"(to see every rank: muster jobs stacks {self._run_dir.name})"
        is_cause = self._spec.on_hang != "warn"  # then it is printed when the attempt has ended
        self._print_line(every_rank if is_cause else f"{text}\n{every_rank}")
        findings["on_hang"] = self._spec.on_hang
        findings["text"] = text
        if is_cause:
            self.hang = hang_end(findings)

    def timeout_for(self, ends: Collection[End]) -> End | None:
        """The collective that timed out, if that is why these ranks have ended."""
        return timeout_end(self._timeout, ends)

    def finish(self) -> None:
        """Record what workers that had to be ended were doing, now that the run is over."""
        last = self._gatherings.pop("end", None)
        if last is not None and last.reports:
            self._write(last.name, msgspec.to_builtins(self._findings(last)))
        for name in self._gatherings:
            self._requests.answer(name, sentences=[])

    def _conclude(self, gathering: Gathering) -> None:
        findings = self._findings(gathering)
        if gathering.name not in OWN_REASONS:
            self._requests.answer(gathering.name, **msgspec.to_builtins(findings))
            return
        if gathering.name == "hang" and not self._is_pause_too_long:
            return  # workers made progress during the inspection
        self.findings_of[gathering.name] = findings["sentences"]
        if gathering.name == "hang":
            self._announce(findings)
        record = msgspec.to_builtins(findings)
        if gathering.name == "timeout":
            self._timeout = record
        self._write(gathering.name, record)
        self._send(Inspect(gathering.name, "resume"))

    def _findings(self, gathering: Gathering) -> Findings:
        """The answers and what they mean, so that one file contains everything."""
        silence = f"no message from its agent for {AGENTS_ANSWER_INSPECTION_S:.1f} s"
        lost = {
            node: f"its agent is waiting for {self._waits[index]}"
            if index in self._waits
            else f"{silence}; is its link down?"
            for index, node in enumerate(self._nodes)
            if index not in gathering.complete and gathering.name != "end"
        }
        ends = self._ends()
        findings: Findings = {
            "time_unix_s": time.time(),
            "run": self._run_dir.name,
            "reports": [gathering.reports[rank] for rank in sorted(gathering.reports)],
            "node_of": {str(rank): node for rank, node in gathering.node_of.items()},
            "lost": lost,
            "ends": ends,
        }
        # for an end, they are needed now only if ranks have timed out; otherwise they come later
        if gathering.name != "end" or any(end["timed_out"] for end in ends.values()):
            findings["sentences"] = sentences_of(findings)
        return findings

    def _ends(self) -> dict[str, RankEnd]:
        """The recorded ends of ranks, by rank."""
        ends: dict[str, RankEnd] = {}
        for rank, record in read_exits(self._run_dir).items():
            at = time.strftime("%H:%M:%S", time.localtime(record["time_unix_s"]))
            text = f"exit code {record['code']} at {at}"
            if record["code"]:
                text += f" ({str(record['message'])[:200]})"
            waited = record["cause"] in ("crash", "lost_peer")
            timed_out = bool(waited and TIMED_OUT.search(str(record["message"])))
            ends[str(rank)] = {
                "text": text,
                "node": record["host"],
                "timed_out": timed_out,
                "lost_peer": record["cause"] == "lost_peer" and not timed_out,
            }
        return ends

    def _write(self, name: str, record: dict[str, object]) -> None:
        with suppress(CannotWrite):  # no reason to end a run
            write_json(STACKS.path(self._run_dir, name=name), record)


def sentences_of(findings: Findings) -> list[str]:
    """Explain a recorded inspection in sentences."""
    try:
        return diagnosis.sentences(views_of(findings), findings["lost"])
    except Exception as error:  # noqa: BLE001 (an inspection must never end a run)
        return [f"the ranks' answers cannot be interpreted ({type(error).__name__}: {error})"]


def views_of(findings: Findings) -> dict[int, RankView]:
    """What each rank was doing, from a recorded inspection."""
    ends = findings["ends"]
    views = {
        report.rank: view_of(
            report, findings["node_of"][str(report.rank)], ends.get(str(report.rank))
        )
        for report in findings["reports"]
    }
    groups = [group for view in views.values() for group in view.groups.values()]
    for rank in {rank for group in groups for rank in group.ranks} - set(views):
        if str(rank) not in ends:  # nothing is known about this rank
            views[rank] = view_of(Report(rank=rank), "a node that does not answer")
    for name, end in ends.items():
        if int(name) not in views:
            views[int(name)] = view_of(Report(rank=int(name)), end["node"], end)
    return dict(sorted(views.items()))
