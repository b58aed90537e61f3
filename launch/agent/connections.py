"""The connections of a run's nodes to node 0, on the network that carries its gradients.

How it works: the agent of node 0 listens there, and every other agent connects from its node's own
address on that network. Each agent reports its connections to the leader of the run, by the
addresses and ports of both ends. The leader counts a node as connected when that node and node 0
report the same connection. So three things are never taken for a node of the run: another program
that listens in the place of node 0, another program that connects to node 0, and an address that
every node has for itself, such as docker's. The connections need no authentication, because nobody
reads from them or writes to them. The kernels at both ends probe each other every second, and
report when the other end has closed or the path between them is dead.

If the connections would show no more than the leader sees anyway, there are none, and nothing in
this module runs (`nodes_connect` of the assignments is then false):

    a local run      all nodes are this machine, and their agents are children of the leader
    led from node 0  all agents of a Slurm job have connected to the leader, which is on node 0, and
                     no --network asks for another path to node 0

    Listener   node 0's side: it keeps connections that the leader knows, and few others
    Connector  the other side: it tries until it is connected, and tries again if that ends
    Meeting    the leader's part: which nodes are connected, from the reports of both ends

Data that another program sends here stays in the kernel, in a buffer of a few kilobytes. The end of
a connection is noticed even so, since `POLLRDHUP` does not wait until the data is read.

A node whose connection breaks before the start connects again. A node whose connection breaks after
the start is lost. A connection has two ends, and both may report that it broke, in any order. So
the leader waits `BOTH_ENDS_REPORT_BREAK_S` for reports before it decides which node is lost.
"""

import errno
import ipaddress
import os
import select
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from launch.deadlines import (
    AGENT_LOST_WHEN_SILENT_S,
    BOTH_ENDS_REPORT_BREAK_S,
    KEEPALIVE_EVERY_S,
    MISSING_NODES_NAMED_AFTER_S,
    NODE_0_CLOSES_UNKNOWN_AFTER_S,
    NODE_0_REACHED_S,
    NODE_0_TRIED_AGAIN_S,
)
from launch.nodes.channel import running_s
from launch.nodes.messages import (
    Accepted,
    Broken,
    Connect,
    Connected,
    ConnectionEnds,
    Endpoint,
    KeepConnection,
    Listening,
    Message,
    Unreached,
)
from launch.spec import Assignment
from muster.errors import MusterError

BUFFER_BYTES = 4_096  # for data that nobody reads
# The most connections unknown to the leader that may be open, since each is an open file.
MOST_UNKNOWN = 128
ACCEPTS = 64  # connections accepted at a time
BACKLOG = 1_024  # connections that wait in the kernel until they are accepted
# poll also reports POLLERR and POLLHUP, without being asked. macOS has no POLLRDHUP. There all
# nodes of a run are simulated, so the leader notices by itself when an agent has ended.
PEER_CLOSED: int = getattr(select, "POLLRDHUP", 0)
UNREACHABLE = (
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
)
MOST_ACCEPTED = 1_024  # connections that belong to no node, which the leader remembers
MOST_NAMED = 3  # of these, in a message

BreakKind = Literal["closed", "silent"]
ConnectionReport: TypeAlias = Listening | Accepted | Connected | Unreached | Broken


def listen_or_connect(
    assignment: Assignment, send: Callable[[Message], None]
) -> "Listener | Connector":
    """Make this node's end of an attempt's connections; `send` sends a message to the leader.

    Raises:
        MusterError: this node is node 0, and cannot listen on the address it should have.
    """
    if assignment.index != 0:
        return Connector(assignment.address)
    address = assignment.coordinator_address
    listener = Listener(assignment.name, address, assignment.coordinator_ports)
    send(Listening(Endpoint(listener.own_address, listener.port)))
    return listener


class Listener:
    """Node 0's side: it accepts connections, and reports each.

    Raises:
        MusterError: on creation; this node cannot listen on this address.
    """

    is_cut_off = False  # no connection leads from node 0 to itself

    def __init__(self, node: str, address: str, ports: Sequence[int]) -> None:
        self._server: socket.socket | None = _server(node, address, ports)
        where = self._server.getsockname()
        self.own_address: str = where[0]
        self.port: int = where[1]
        self._poll = select.poll()
        self._open: dict[int, _Accepted] = {}  # by the number of its open file
        # the open ones that the leader does not know
        self._unknown: dict[ConnectionEnds, _Accepted] = {}

    def tick(self) -> list[Message]:
        """What is new, as messages to the leader."""
        return [*self._ended(), *self._accepted()]

    def hear(self, message: object) -> None:
        """Take a message from the leader: which connection belongs to the run, and is kept."""
        if isinstance(message, KeepConnection):
            self._unknown.pop(message.ends, None)

    def stop_accepting(self) -> None:
        """Close the port and all connections that belong to no node, as all nodes are connected."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for accepted in [*self._unknown.values()]:
            self._forget(accepted)

    def close(self) -> None:
        self.stop_accepting()
        for accepted in [*self._open.values()]:
            self._forget(accepted)

    def _ended(self) -> Iterator[Message]:
        for number, _ in self._poll.poll(0):
            accepted = self._open[number]
            yield _broken(accepted.ends, accepted.connection)
            self._forget(accepted)

    def _accepted(self) -> Iterator[Message]:
        for _ in range(ACCEPTS):
            if self._server is None:
                return
            if len(self._unknown) >= MOST_UNKNOWN:
                oldest = next(iter(self._unknown.values()))
                if running_s() - oldest.since_s < NODE_0_CLOSES_UNKNOWN_AFTER_S:
                    return  # further connections wait in the kernel's queue
                yield _broken(oldest.ends, oldest.connection)
                self._forget(oldest)
            try:
                connection, _ = self._server.accept()
            except OSError:  # no connection to accept, or this process has too many files open
                return
            try:
                accepted = _Accepted(connection)
            except OSError:  # it has closed already
                connection.close()
                continue
            self._open[connection.fileno()] = accepted
            self._unknown[accepted.ends] = accepted
            self._poll.register(connection, PEER_CLOSED)
            yield Accepted(accepted.ends)

    def _forget(self, accepted: "_Accepted") -> None:
        self._poll.unregister(accepted.connection)
        del self._open[accepted.connection.fileno()]
        self._unknown.pop(accepted.ends, None)
        accepted.connection.close()


class _Accepted:
    """A connection that node 0 has accepted.

    Raises:
        OSError: on creation; it has closed already.
    """

    def __init__(self, connection: socket.socket) -> None:
        _watch(connection)
        self.connection = connection
        self.ends = _ends_of(connection)
        self.since_s = running_s()


class Connector:
    """The side of every other node: it is connected to node 0, or tries to connect.

    `own`: this node's address on the network for gradients; None: its address on the way to node 0.
    """

    def __init__(self, own: str | None) -> None:
        self._where: tuple[str, int] | None = None  # node 0 listens there
        self._own = own
        self.own_address: str | None = None  # once it is connected
        self._connection: socket.socket | None = None
        self._ends: ConnectionEnds | None = None  # of an established connection
        self._poll = select.poll()
        self._next_s = running_s()  # when the next try begins, or when the current one is over
        self._reason = ""  # why it is not connected, as it was last reported

    @property
    def is_cut_off(self) -> bool:
        """Whether it was connected, and no longer is."""
        return self.own_address is not None and self._ends is None

    def hear(self, message: object) -> None:
        """Take a message from the leader: where node 0 listens."""
        if isinstance(message, Connect):
            self._where = (message.address, message.port)

    def tick(self) -> list[Message]:
        """What is new, as messages to the leader."""
        try:
            if self._connection is None and self._where and running_s() >= self._next_s:
                self._begin(self._where)
            if self._connection is None:
                return []
            if self._ends is None:
                return self._conclude(self._connection)
        except OSError as error:
            return self._failed((error.strerror or str(error)).lower())
        if not self._poll.poll(0):
            return []
        message = _broken(self._ends, self._connection)
        self.close()
        return [message]

    def close(self) -> None:
        if self._connection is not None:
            self._poll.unregister(self._connection)
            self._connection.close()
        self._connection = None
        self._ends = None

    def _begin(self, where: tuple[str, int]) -> None:
        """Begin to connect.

        Raises:
            OSError: this fails.
        """
        connection = socket.socket(socket.AF_INET6 if ":" in where[0] else socket.AF_INET)
        self._connection = connection
        self._poll.register(connection, select.POLLOUT)
        self._next_s = running_s() + NODE_0_REACHED_S
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        _watch(connection)
        if self._own is not None:
            connection.bind((self._own, 0))
        with suppress(BlockingIOError):  # the try continues in the kernel
            connection.connect(where)

    def _conclude(self, connection: socket.socket) -> list[Message]:
        """Check whether the current try has succeeded.

        Raises:
            OSError: it has failed.
        """
        if not self._poll.poll(0):
            if running_s() >= self._next_s:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            return []
        if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        ends = _ends_of(connection)
        self._ends = ends
        self.own_address = ends.own.address
        self._poll.modify(connection, PEER_CLOSED)
        self._reason = ""
        return [Connected(ends)]

    def _failed(self, reason: str) -> list[Message]:
        """Report why a try has failed, if the reason is new; the next try comes soon."""
        self.close()
        self._next_s = running_s() + NODE_0_TRIED_AGAIN_S
        if reason == self._reason:
            return []
        self._reason = reason
        return [Unreached(reason)]


def _ends_of(connection: socket.socket) -> ConnectionEnds:
    own = connection.getsockname()
    peer = connection.getpeername()
    return ConnectionEnds(Endpoint(own[0], own[1]), Endpoint(peer[0], peer[1]))


def _broken(ends: ConnectionEnds, connection: socket.socket) -> Broken:
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return Broken(ends, "silent" if error in UNREACHABLE else "closed")


def _watch(connection: socket.socket) -> None:
    """Have the kernel probe the other end, and end the connection if there is no answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_EVERY_S),
        ("TCP_KEEPALIVE", KEEPALIVE_EVERY_S),  # TCP_KEEPIDLE on macOS
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_KEEPCNT", int(AGENT_LOST_WHEN_SILENT_S) // KEEPALIVE_EVERY_S - 1),
        ("TCP_USER_TIMEOUT", int(AGENT_LOST_WHEN_SILENT_S * 1000)),  # not on macOS
    ):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _server(node: str, address: str, ports: Sequence[int]) -> socket.socket:
    """A server on the first of these ports that is free."""
    error = OSError("no port given")
    for port in ports:
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # it is inherited
            server.bind((address, port))
            server.listen(BACKLOG)
            server.setblocking(False)
        except OSError as refused:
            server.close()
            error = refused
            continue
        return server
    tried = f"{ports[0]} to {ports[-1]}" if len(ports) > 1 else "".join(map(str, ports))
    raise MusterError(
        f"{node} cannot listen on {address}, port {tried} "
        f"({(error.strerror or str(error)).lower()}); "
        "is that its address on the nodes' network?"
    )


@dataclass(frozen=True)
class ReportedConnection:
    """A connection to node 0: the endpoints of the other node and of node 0.

    It is the same value whichever of the two nodes reports it.
    """

    node: Endpoint
    node_0: Endpoint

    @classmethod
    def from_ends(cls, index: int, ends: ConnectionEnds) -> "ReportedConnection":
        """The connection with these ends, as the node with this index reports them."""
        own, peer = _plain(ends.own), _plain(ends.peer)
        return cls(peer, own) if index == 0 else cls(own, peer)

    def __str__(self) -> str:
        return f"from {_in_words(self.node)} to {_in_words(self.node_0)}"


@dataclass(frozen=True)
class Loss:
    """A node that is lost, as the connections show it."""

    index: int
    how: BreakKind
    for_s: float  # since the first report of it


@dataclass
class _Break:
    """The connection of one node that broke after the start."""

    how: BreakKind
    by: set[int] = field(default_factory=set)  # the nodes that report it


class Meeting:
    """Which nodes of one attempt are connected to node 0; `names`: the names of all, in order.

    This class only takes and returns values: it sends and prints nothing, and the caller passes
    the time.
    """

    def __init__(self, names: Sequence[str], join_s: float, now_s: float) -> None:
        self._names = names
        self._join_s = join_s
        self._began_s = now_s
        self.node_0_endpoint: Endpoint | None = None  # node 0 listens there
        self.has_begun = False  # all were connected: a node may be lost from now on
        # The connections that node 0 reports, with any program at the other end; and the
        # connections among them that the caller knows to be a node's.
        self._accepted: dict[ReportedConnection, ConnectionEnds] = {}
        self._known: set[ReportedConnection] = set()
        self._connected: dict[int, ReportedConnection] = {}  # by the node that reports it
        self._reasons: dict[int, str] = {}  # why a node is not connected
        self._announced = ""
        self._breaks: dict[int, _Break] = {}
        self._first_break_s: float | None = None

    def take(self, index: int, report: ConnectionReport, now_s: float) -> None:
        """Take a report from the node with this index."""
        match report:
            case Listening(at):
                self.node_0_endpoint = _plain(at)
            case Accepted(ends):
                unmatched = self._unmatched()
                if len(unmatched) >= MOST_ACCEPTED:
                    del self._accepted[unmatched[0]]
                self._accepted[ReportedConnection.from_ends(0, ends)] = ends
            case Connected(ends):
                self._connected[index] = ReportedConnection.from_ends(index, ends)
                self._reasons.pop(index, None)
            case Unreached(reason):
                self._reasons[index] = reason
            case Broken(ends, how):
                self._take_break(index, ReportedConnection.from_ends(index, ends), how, now_s)

    def _take_break(
        self, by: int, connection: ReportedConnection, how: BreakKind, now_s: float
    ) -> None:
        node = next((at for at, own in self._connected.items() if own == connection), None)
        if self.has_begun:
            if node is not None and by in (0, node):  # else it does not belong to the run
                self._breaks.setdefault(node, _Break(how)).by.add(by)
                if self._first_break_s is None:
                    self._first_break_s = now_s
        elif by == 0:
            self._accepted.pop(connection, None)
        elif by == node:
            del self._connected[node]

    def newly_confirmed(self) -> list[ConnectionEnds]:
        """The connections that both ends have newly reported, as node 0 reports them."""
        met = {
            connection for connection in self._connected.values() if connection in self._accepted
        }
        new = met - self._known
        self._known = met
        return [self._accepted[connection] for connection in new]

    @property
    def missing(self) -> list[int]:
        """The nodes that are not connected, as far as both ends have reported."""
        others = range(1, len(self._names))
        return [at for at in others if self._connected.get(at) not in self._accepted]

    def waiting(self, now_s: float) -> str | None:
        """Name the nodes that the run has long been waiting for; None if that is not new."""
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
        """Why the run cannot begin, if nodes are missing after the time to wait; else None."""
        missing = [] if self.has_begun else self.missing
        if not missing or now_s - self._began_s <= self._join_s:
            return None
        node_0 = "node 0" if self.node_0_endpoint is None else _in_words(self.node_0_endpoint)
        head = (
            f"after {self._join_s:.0f} s, still missing: {_numbers(missing)} "
            f"(of {len(self._names)}); check that it can reach {node_0}, that node 0 has this "
            "address on their network, and that no firewall is in between"
        )
        return "; ".join([head, *(why for at in missing if (why := self._reason(at)))])

    @property
    def cut_off_node(self) -> int:
        """The node that cannot be reached, or cannot reach others, while nodes are missing."""
        return self._cut_off(self.missing)

    def _cut_off(self, unconnected: Collection[int]) -> int:
        """The node that is cut off, if these nodes have no connection to node 0.

        If there are several, and no other node is connected, it is node 0; otherwise it is the
        first of them.
        """
        if len(unconnected) > 1 and len(unconnected) == len(self._names) - 1:
            return 0
        return min(unconnected)

    def loss(self, now_s: float) -> Loss | None:
        """The node that is lost, after all nodes have had time to report; None if none is lost.

        It is node 0 if node 0 has not reported a break itself; otherwise the node that is cut off.
        """
        if self._first_break_s is None or now_s - self._first_break_s < BOTH_ENDS_REPORT_BREAK_S:
            return None
        first = self._breaks[min(self._breaks)]
        lost = self._cut_off(self._breaks) if 0 in first.by else 0
        return Loss(lost, first.how, now_s - self._first_break_s)

    def _unmatched(self) -> list[ReportedConnection]:
        """The connections of node 0 that no other node has reported."""
        own = set(self._connected.values())
        return [accepted for accepted in self._accepted if accepted not in own]

    def _reason(self, index: int) -> str:
        """Why a node is missing, as far as that is known; or ""."""
        name = self._names[index]
        connection = self._connected.get(index)
        if connection is None:
            reason = self._reasons.get(index)
            return f"{name} could not connect: {reason}" if reason else ""
        unmatched = self._unmatched()
        if not unmatched:
            return (
                f"{name} is connected {connection}, but node 0 has no such connection: another "
                "program is listening there; choose the network with --network"
            )
        latest = ", ".join(map(str, unmatched[-MOST_NAMED:]))
        return (
            f"{name} is connected {connection}, but node 0 sees only connections {latest}: "
            "something between them translates addresses (NAT), which gloo and NCCL do not "
            "support; choose the network with --network"
        )


def _plain(end: Endpoint) -> Endpoint:
    """An end of a connection, in the form that is the same on all nodes."""
    # each node has its own card names
    address = ipaddress.ip_address(end.address.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return Endpoint(str(address), end.port)


def _in_words(end: Endpoint) -> str:
    return f"{end.address} (port {end.port})"


def _numbers(nodes: Sequence[int]) -> str:
    return ", ".join(f"node {index}" for index in nodes)
