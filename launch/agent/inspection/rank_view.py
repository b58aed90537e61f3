"""What one rank is doing, read from its report: which line, which collective, and since when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# What is nobody's own program: installed packages, Python itself, and what every worker starts as.
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "<string>")
OURS = (
    "muster/worker/worker_main.py",
    "muster/worker/preload.py",
    "muster/worker/inspection.py",
)
CHILDREN = ("/torch/utils/data/", "/multiprocessing/", "/concurrent/futures/", "/subprocess.py")


@dataclass(frozen=True)
class Place:
    """A line that a thread is in, and for how long at least."""

    file: str
    line: int
    function: str
    text: str = ""
    for_s: float | None = None

    def __str__(self) -> str:
        function = self.function.rpartition("<locals>.")[2]
        inside = "" if function == "<module>" else f"{function}, "
        return f"{inside}{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class Collective:
    """One collective that a rank has begun."""

    group: str
    description: str
    number: int
    operation: str
    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    waits: bool  # it has not ended
    age_s: float
    limit_s: float  # after which torch gives it up
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

    ranks: tuple[int, ...] = ()  # empty: all
    begun: int = -1  # number of the last collective that this rank has begun in it


@dataclass(frozen=True)
class RankView:
    """What one rank is doing."""

    rank: int
    node: str
    answers: bool  # by itself; else all here is the kernel's word, or faulthandler's
    letter: str  # of its process: R, S, D, T, X
    words: str
    pid: int | None = None
    place: Place | None = None  # innermost of the user's own lines
    needs_child: bool = False  # it waits for a process of its own, as a data loader does
    groups: Mapping[str, Group] = field(default_factory=dict)
    collectives: tuple[Collective, ...] = ()
    children: tuple[tuple[int, str, Place | None], ...] = ()  # pid, what it does, where
    clock_offset_s: float = 0.0  # to add to its node's clock, to have node 0's
    ended: str = ""  # how, where it has
    timed_out: bool = False  # it ends, or has ended: others had not come to a collective
    lost_peer: bool = False  # it has ended because another rank was gone
    imports: bool = False  # its main thread is within an import
    is_command: bool = False  # no Python, or one without our handler

    @property
    def waiting(self) -> Collective | None:
        """The first collective in which it waits for others, or has given up to."""
        if self.timed_out and self.collectives:
            return self.collectives[-1]
        return next((one for one in self.collectives if one.waits), None)

    def arrivals(self, group: str) -> dict[int, float]:
        """When it came to each collective of a group, in Unix seconds of node 0's clock."""
        return {
            one.number: one.begun_unix_s + self.clock_offset_s
            for one in self.collectives
            if one.group == group
        }

    @property
    def for_s(self) -> float | None:
        """How long it has been where it is."""
        if self.waiting is not None:
            return self.waiting.age_s
        known = [one.age_s for one in self.collectives[-1:]]
        known += [self.place.for_s] if self.place and self.place.for_s is not None else []
        return min(known) if known else None

    @property
    def is_held(self) -> bool:
        return self.letter in ("T", "t", "D")


def view_of(
    report: Mapping[str, Any], node: str, exit_record: Mapping[str, Any] | None = None
) -> RankView:
    """The view of the rank that `report` is from, as `local_workers.ask` gives it."""
    process = report.get("process", {})
    threads = report.get("threads", [])
    main: list[dict[str, Any]] = next((one["frames"] for one in threads if one.get("main")), [])
    gave_up = report.get("gave_up") or {}
    main = gave_up.get("frames") or main
    return RankView(
        rank=int(report["rank"]),
        node=node,
        answers=bool(report.get("answers")),
        letter=str(process.get("letter", "")),
        words=str(process.get("words", "")),
        pid=process.get("pid"),
        place=own_place(main),
        needs_child=waits_for_child(threads),
        groups={
            name: Group(tuple(one.get("ranks", ())), int(one.get("begun", -1)))
            for name, one in report.get("groups", {}).items()
        },
        collectives=tuple(_collective(one) for one in report.get("collectives", ())),
        children=tuple(_child(one) for one in report.get("children", ())),
        clock_offset_s=float(report.get("clock_offset_s", 0.0)),
        ended=str((exit_record or {}).get("text", "")),
        timed_out=bool(gave_up) or bool((exit_record or {}).get("timed_out")),
        lost_peer=bool((exit_record or {}).get("lost_peer")),
        imports=any("<frozen importlib" in str(one["file"]) for one in main),
        is_command=bool(report.get("is_command")),
    )


def waits_for_child(threads: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the main thread is where one waits for a process of its own, as a loader's."""
    main: list[dict[str, Any]] = next((one["frames"] for one in threads if one.get("main")), [])
    return any(part in str(one["file"]) for one in main for part in CHILDREN)


def own_place(frames: list[dict[str, Any]]) -> Place | None:
    """The innermost line of the user's own; of a library's, if there is none."""
    own = [one for one in frames if not _is_library(str(one["file"]))]
    rest = [one for one in frames if not str(one["file"]).endswith(OURS)]
    chosen = own or rest
    return _place(chosen[-1]) if chosen else None


def _is_library(file: str) -> bool:
    return any(part in file for part in LIBRARIES) or file.endswith(OURS)


def _child(raw: Mapping[str, Any]) -> tuple[int, str, Place | None]:
    main: list[dict[str, Any]] = next(
        (one["frames"] for one in raw["threads"] if one.get("main")), []
    )
    return int(raw["pid"]), str(raw["words"]), own_place(main)


def _place(raw: Mapping[str, Any]) -> Place:
    return Place(
        str(raw["file"]),
        int(raw["line"] or 0),
        str(raw["function"]),
        str(raw.get("text", "")),
        raw.get("for_s"),
    )


def _collective(raw: Mapping[str, Any]) -> Collective:
    return Collective(
        group=str(raw["group"]),
        description=str(raw["description"]),
        number=int(raw["number"]),
        operation=str(raw["operation"]),
        shapes=tuple(tuple(shape) for shape in raw["shapes"]),
        types=tuple(raw["types"]),
        waits=bool(raw["waits"]),
        age_s=float(raw["age_s"]),
        limit_s=float(raw["limit_s"]),
        begun_unix_s=float(raw["begun_unix_s"]),
    )
