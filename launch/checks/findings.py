"""The findings about all nodes, and a row of the table for each check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from launch.nodes.network_choice import Choice
from launch.nodes.survey import Probe
from launch.spec import WorkersPython

Verdict = Literal["ok", "warn", "FAIL"]
SHOWN = 8  # names in a row, and lines


@dataclass(frozen=True)
class Reach:
    """A connection from one node to another: "" if data came through, else the error."""

    trouble: str
    connect_s: float | None = None


@dataclass(frozen=True)
class Node:
    """One node that answered."""

    name: str
    probe: Probe
    address: str | None = None  # on the chosen network
    skew_s: float | None = None  # its clock minus this machine's
    reached: Mapping[str, Reach] = field(default_factory=dict)  # other nodes, by name

    @property
    def interface(self) -> str:
        """The interface with its address."""
        own = {one["address"]: one["name"] for one in self.probe["interfaces"]}
        return str(own.get(self.address, "?"))


@dataclass(frozen=True)
class Findings:
    """The facts about all nodes; the rows are made from these alone."""

    launcher: str
    nodes: Sequence[Node]  # those that answered, in the order of their ranks
    silent: Sequence[str] = ()  # a line for each other node: which one, why, what to do
    chosen: Choice | None = None
    trouble: str = ""  # why no network could be chosen
    workers: WorkersPython = field(default_factory=WorkersPython)  # their Python


@dataclass(frozen=True)
class Row:
    """One check: the finding, a line for each difference, and what to do about it."""

    check: str
    verdict: Verdict
    found: tuple[str, ...]
    fix: str = ""

    @property
    def line(self) -> str:
        """The row in one line, for a preflight, which prints problems only."""
        lines = [*self.found, *self.fix.splitlines()]
        return f"{self.check}: {'; '.join(lines)}"


def lines(rows: Sequence[Row], verdict: Verdict) -> list[str]:
    """A line for each row with this verdict; FAIL is a problem that would also make a run fail."""
    return [row.line for row in rows if row.verdict == verdict]


def groups(values: Mapping[str, str]) -> tuple[str, ...]:
    """`value` if all nodes have it; else who has which.

    The most frequent comes first.
    """
    who: dict[str, list[str]] = {}
    for name, value in values.items():
        who.setdefault(value, []).append(name)
    if len(who) == 1:
        return tuple(who)
    ordered = sorted(who.items(), key=lambda item: -len(item[1]))
    return shortened([f"{listed(names)}: {value}" for value, names in ordered])


def listed(names: Sequence[str]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and the number of the others."""
    more = (f"and {len(lines) - SHOWN} more",) if len(lines) > SHOWN else ()
    return (*lines[:SHOWN], *more)
