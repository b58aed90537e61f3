"""Which nodes of a run are connected to node 0, from what both ends report to its leader.

How it works: a node counts as connected when it and node 0 report the same connection: the same
addresses and ports of both ends. So neither a program that listens where node 0 should, nor a
stranger that connects to node 0, is taken for a node of the run; nor is an address that each node
has for itself, such as docker's.

Before the start a node whose connection breaks connects again. After it that is a lost node. A
connection has two ends, and both may report that it broke, in any order. So the leader waits
`BOTH_ENDS_REPORT_BREAK_S` for reports before it says which of the two nodes is lost.

Values come in and values go out: nothing is sent or printed here, and the caller has the clock.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from launch.deadlines import BOTH_ENDS_REPORT_BREAK_S, MISSING_NODES_NAMED_AFTER_S

MOST_ACCEPTED = 1_024  # connections of no node, of which the leader knows
SHOWN = 3  # of them

How = Literal["closed", "silent"]
End = tuple[str, int]  # an address and a port


@dataclass(frozen=True)
class Connection:
    """A connection as the node sees it that has connected to node 0, whoever reports it."""

    node: End
    node_0: End

    def __str__(self) -> str:
        return f"from {_shown(self.node)} to {_shown(self.node_0)}"


@dataclass(frozen=True)
class Loss:
    """A node that is lost, as the connections show it."""

    index: int
    how: How
    for_s: float  # since the first report of it


@dataclass
class _Break:
    """The connection of one node that broke after the start."""

    how: How
    by: set[int] = field(default_factory=set)  # the nodes that report it


class Meeting:
    """The nodes of one attempt, from its start on; `names` are those of all nodes, in order."""

    def __init__(self, names: Sequence[str], join_s: float, now_s: float) -> None:
        self._names = names
        self._join_s = join_s
        self._began_s = now_s
        self.where: End | None = None  # node 0 listens there
        self.has_begun = False  # all were connected: a node may be lost from now on
        # What node 0 reports, whoever is at the other end; and of it what the caller knows to be
        # of a node.
        self._accepted: dict[Connection, Mapping[str, Any]] = {}
        self._known: set[Connection] = set()
        self._connected: dict[int, Connection] = {}  # as each other node reports it
        self._reasons: dict[int, str] = {}  # why a node is not connected
        self._announced = ""
        self._breaks: dict[int, _Break] = {}
        self._first_break_s: float | None = None

    def listens(self, report: Mapping[str, Any]) -> None:
        """Node 0 listens there."""
        self.where = _end(report["address"], report["port"])

    def accepted(self, report: Mapping[str, Any]) -> None:
        """Node 0 has accepted a connection."""
        connection = Connection(node=_end(*report["peer"]), node_0=_end(*report["own"]))
        strange = self._strange()
        if len(strange) >= MOST_ACCEPTED:
            del self._accepted[strange[0]]
        self._accepted[connection] = report

    def connected(self, index: int, report: Mapping[str, Any]) -> None:
        """This node has connected."""
        connection = Connection(node=_end(*report["own"]), node_0=_end(*report["peer"]))
        self._connected[index] = connection
        self._reasons.pop(index, None)

    def newly_met(self) -> list[Mapping[str, Any]]:
        """The connections that both ends have reported since the last call, in node 0's words."""
        met = {known for known in self._connected.values() if known in self._accepted}
        new = met - self._known
        self._known = met
        return [self._accepted[connection] for connection in new]

    def unreached(self, index: int, reason: str) -> None:
        """This node has tried to connect, without success."""
        self._reasons[index] = reason

    def broken(self, index: int, report: Mapping[str, Any], now_s: float) -> None:
        """This node reports that a connection, of which it is one end, has closed or is silent."""
        own = _end(*report["own"])
        peer = _end(*report["peer"])
        if index == 0:
            connection = Connection(node=peer, node_0=own)
        else:
            connection = Connection(node=own, node_0=peer)
        node = next((at for at, known in self._connected.items() if known == connection), None)
        if not self.has_begun:
            if index == 0:
                self._accepted.pop(connection, None)
            elif node == index:
                del self._connected[index]
            return
        if node is None or index not in (0, node):
            return  # nobody's of the run
        self._breaks.setdefault(node, _Break(report["how"])).by.add(index)
        if self._first_break_s is None:
            self._first_break_s = now_s

    @property
    def missing(self) -> list[int]:
        """The nodes that are not connected, as far as both ends have reported."""
        others = range(1, len(self._names))
        return [at for at in others if self._connected.get(at) not in self._accepted]

    def waiting(self, now_s: float) -> str | None:
        """Whom the run waits for, where that takes long; None if that is no news."""
        names = _numbers(self.missing)
        if (
            not names
            or names == self._announced
            or now_s - self._began_s <= MISSING_NODES_NAMED_AFTER_S
        ):
            return None
        self._announced = names
        return f"waiting for {names}"

    def failure(self, now_s: float) -> str | None:
        """Why the run cannot begin: nodes are missing after the time to wait; None: it goes on."""
        missing = self.missing
        if self.has_begun or not missing or now_s - self._began_s <= self._join_s:
            return None
        node_0 = "node 0" if self.where is None else _shown(self.where)
        head = (
            f"after {self._join_s:.0f} s still missing: {_numbers(missing)} of {len(self._names)}; "
            f"can it reach {node_0}, is that its address on this network, and is no firewall "
            "between?"
        )
        return " ".join([head, *(why for at in missing if (why := self._reason(at)))])

    @property
    def at_fault(self) -> int:
        """The node that cannot be reached, or cannot reach others: node 0 if several miss it."""
        missing = self.missing
        return 0 if 1 < len(missing) == len(self._names) - 1 else missing[0]

    def loss(self, now_s: float) -> Loss | None:
        """The node that is lost, once all have had time to report; None where none is.

        Where one end alone reports, the other end is lost. Where both do, it is node 0 if every
        other node has lost it.
        """
        if self._first_break_s is None or now_s - self._first_break_s < BOTH_ENDS_REPORT_BREAK_S:
            return None
        index, broken = min(self._breaks.items())
        others = len(self._names) - 1
        is_node_0 = broken.by == {index} or 1 < others == len(self._breaks)
        return Loss(0 if is_node_0 else index, broken.how, now_s - self._first_break_s)

    def _strange(self) -> list[Connection]:
        """The connections of node 0 that no other node has reported."""
        own = set(self._connected.values())
        return [accepted for accepted in self._accepted if accepted not in own]

    def _reason(self, index: int) -> str:
        """What is known of a node that is missing: a sentence, or nothing."""
        name = self._names[index]
        connection = self._connected.get(index)
        if connection is None:
            reason = self._reasons.get(index)
            return f"{name} could not connect: {reason}." if reason else ""
        strange = self._strange()
        if not strange:
            return (
                f"{name} is connected {connection}, but node 0 has no such connection: another "
                "program listens there; choose the network with --network."
            )
        shown = ", ".join(map(str, strange[-SHOWN:]))
        return (
            f"{name} is connected {connection}, but node 0 sees connections {shown} alone: "
            "something between them changes addresses (NAT), which gloo and NCCL do not allow; "
            "choose the network with --network."
        )


def _end(address: str, port: int) -> End:
    """An end of a connection, in the form that is the same on all nodes."""
    plain = ipaddress.ip_address(address.partition("%")[0])  # the card's name is each node's own
    if isinstance(plain, ipaddress.IPv6Address) and plain.ipv4_mapped is not None:
        plain = plain.ipv4_mapped
    return str(plain), port


def _shown(end: End) -> str:
    return f"{end[0]} (port {end[1]})"


def _numbers(nodes: Sequence[int]) -> str:
    return ", ".join(f"node {index}" for index in nodes)
