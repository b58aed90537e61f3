"""The findings about all nodes, and the row of each check in the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from launch.nodes.answers import Probe
from launch.nodes.network_choice import Choice
from launch.nodes.resources import Cores, SharedMemory
from launch.spec import WorkersPython
from muster.printable import LISTED, listed

Verdict = Literal["ok", "warn", "FAIL"]


@dataclass(frozen=True)
class PairConnection:
    """One node's attempt to connect to another node."""

    error: str  # "" if data came through
    connect_s: float | None = None


@dataclass(frozen=True)
class CheckedNode:
    """One node that answered."""

    name: str
    probe: Probe
    address: str | None = None  # on the chosen network
    skew_s: float | None = None  # its clock minus this machine's
    # by the other node's name
    connections: Mapping[str, PairConnection] = field(default_factory=dict)
    shared_memory: SharedMemory | None = None  # None: unknown
    cores: Cores | None = None  # for the run's workers, if `workers` is known
    workers: int = 0  # the number of workers that share these cores; 0: unknown

    @property
    def interface(self) -> str:
        """The name of the interface that has the node's address."""
        names = {interface.address: interface.name for interface in self.probe.interfaces}
        return names.get(self.address or "", "?")


@dataclass(frozen=True)
class Findings:
    """All facts about the nodes; the rows are made from these facts alone."""

    launcher: str
    nodes: Sequence[CheckedNode]  # the nodes that answered, in the order of their ranks
    silent: Sequence[str] = ()  # a line for each other node: its name, why, what to do
    chosen: Choice | None = None  # the network
    trouble: str = ""  # why no network could be chosen
    workers: WorkersPython = field(default_factory=WorkersPython)  # the workers' Python
    means: str = ""  # how the nodes were reached, in messages; "": by the launcher's name


@dataclass(frozen=True)
class Row:
    """One check: the finding, a line for each difference, and what to do about it."""

    check: str
    verdict: Verdict
    found: tuple[str, ...]
    fix: str = ""

    @property
    def line(self) -> str:
        """The row as one line, as printed before a run, when only problems are printed."""
        lines = [*self.found, *self.fix.splitlines()]
        return f"{self.check}: {'; '.join(lines)}"


def lines(rows: Sequence[Row], verdict: Verdict) -> list[str]:
    """A line for each row with this verdict; FAIL means that a run would also fail."""
    return [row.line for row in rows if row.verdict == verdict]


def groups(values: Mapping[str, str]) -> tuple[str, ...]:
    """Only the value if all nodes have the same one; otherwise a line per value, with its nodes.

    The most frequent value comes first.
    """
    nodes: dict[str, list[str]] = {}  # by value
    for name, value in values.items():
        nodes.setdefault(value, []).append(name)
    if len(nodes) == 1:
        return tuple(nodes)
    ordered = sorted(nodes.items(), key=lambda item: -len(item[1]))
    return shortened([f"{listed(names)}: {value}" for value, names in ordered])


def shortened(lines: Sequence[str]) -> tuple[str, ...]:
    """The first lines, and a line with the number of omitted lines, if there are any."""
    more = (f"and {len(lines) - LISTED} more",) if len(lines) > LISTED else ()
    return (*lines[:LISTED], *more)
