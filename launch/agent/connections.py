"""The connections of a run's nodes to node 0, on the network that its gradients take.

How it works: the agent of node 0 listens there, and each other agent connects from its node's own
address on that network. Each reports what it has to the leader of the run, by the addresses and
ports of both ends, and the leader compares the reports: see `meeting.py`. So these connections need
no proof. Nobody reads from them or writes to them. The kernels at both ends ask each other every
second whether they live, and tell when one has closed or the way between them is dead.

    Connections  this node's part, as its leader has it do it
    Listener     node 0's side: it keeps connections that the leader knows, and few others
    Connector    the other side: it tries until it is connected, and again where that has ended

What is sent here by somebody else stays in the kernel, in a buffer of a few kilobytes. Even so the
end of a connection is seen, since `POLLRDHUP` does not wait until the data is read.
"""

import errno
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from launch.deadlines import (
    AGENT_LOST_WHEN_SILENT_S,
    KEEPALIVE_EVERY_S,
    NODE_0_CLOSES_UNKNOWN_AFTER_S,
    NODE_0_REACHED_S,
    NODE_0_TRIED_AGAIN_S,
)
from launch.nodes.channel import running_s
from launch.nodes.this_machine import among, free_port, is_free
from launch.spec import Assignment
from muster.errors import MusterError

BUFFER_BYTES = 4_096  # for what nobody reads
# How many connections that the leader does not know may be open, since each is an open file; if
# there are so many, the time after which the first of them is closed.
MOST_UNKNOWN = 128
ACCEPTS = 64  # connections accepted at a time
BACKLOG = 1_024  # connections that wait in the kernel until they are accepted
ENDS = select.POLLRDHUP  # and POLLERR and POLLHUP, for which poll never has to be asked
UNREACHABLE = (
    errno.ETIMEDOUT,
    errno.EHOSTUNREACH,
    errno.EHOSTDOWN,
    errno.ENETUNREACH,
    errno.ENETDOWN,
)

Message = dict[str, Any]
Ends = tuple[str, int, str, int]  # the address and the port of the own end, and of the other


class Connections:
    """What one node has of the connections of an attempt.

    Its messages are those that attempt.py describes. `say` sends one to the leader.

    Raises:
        MusterError: on creation; node 0 cannot listen at the address it should have.
    """

    def __init__(self, assignment: Assignment, say: Callable[..., None]) -> None:
        self._assignment = assignment
        self._say = say
        self._end: Listener | Connector | None = None
        self._must_choose = False
        self.master_port: int | None = None  # that of the start, which all have got
        if assignment.index == 0:
            address = assignment.coordinator_address
            self._end = Listener(assignment.name, address, assignment.coordinator_ports)
            say(listening={"address": self._end.own_address, "port": self._end.port})

    @property
    def own_address(self) -> str:
        """This node's address on the network for gradients; known when workers may start."""
        own = None if self._end is None else self._end.own_address
        return own or self._assignment.coordinator_address

    @property
    def is_cut_off(self) -> bool:
        """Whether this node was connected to node 0, and is not any more."""
        return isinstance(self._end, Connector) and self._end.is_cut_off

    def hear(self, message: Message) -> None:
        """Take what the leader says."""
        if "connect" in message and self._end is None:
            where = message["connect"]
            self._end = Connector(where["address"], where["port"], self._assignment.address)
        elif "keep" in message and isinstance(self._end, Listener):
            self._end.keep(ends_in(message["keep"]))
        elif "choose_port" in message:
            self._must_choose = self._assignment.index == 0
        elif "start" in message:
            self.master_port = message["start"]

    def tick(self) -> None:
        """Do what is due; must be called many times a second.

        Raises:
            MusterError: no port is free for torch, or --master-port is not.
        """
        if isinstance(self._end, Listener) and self._must_choose:
            self._must_choose = False
            self._say(master_port=_master_port(self._assignment))
            self._end.stop_accepting()  # before, its own port would count as a free one
        for message in [] if self._end is None else self._end.tick():
            self._say(**message)

    def close(self) -> None:
        if self._end is not None:
            self._end.close()


class Listener:
    """Node 0's side: it accepts connections, and reports each.

    Raises:
        MusterError: on creation; this node cannot listen at this address.
    """

    def __init__(self, node: str, address: str, ports: Sequence[int]) -> None:
        self._server: socket.socket | None = _server(node, address, ports)
        where = self._server.getsockname()
        self.own_address: str = where[0]
        self.port: int = where[1]
        self._poll = select.poll()
        self._open: dict[int, _Accepted] = {}  # by the number of its open file
        self._unknown: dict[Ends, _Accepted] = {}  # those of them that the leader does not know

    def tick(self) -> list[Message]:
        """What is new, as messages to the leader."""
        return [*self._ended(), *self._accepted()]

    def keep(self, ends: Ends) -> None:
        """The leader knows this connection as one of the run's."""
        self._unknown.pop(ends, None)

    def stop_accepting(self) -> None:
        """All nodes are connected: close the port, and what is no node's."""
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
                    return  # others wait in the kernel's queue
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
            self._poll.register(connection, ENDS)
            yield {"accepted": _as_message(accepted.ends)}

    def _forget(self, accepted: "_Accepted") -> None:
        self._poll.unregister(accepted.connection)
        del self._open[accepted.connection.fileno()]
        self._unknown.pop(accepted.ends, None)
        accepted.connection.close()


class _Accepted:
    """A connection that node 0 has accepted.

    Raises:
        OSError: on creation; it is not one any more.
    """

    def __init__(self, connection: socket.socket) -> None:
        _watch(connection)
        self.connection = connection
        self.ends = _ends_of(connection)
        self.since_s = running_s()


class Connector:
    """The side of a node that is not node 0: it is connected to node 0, or tries to be.

    `own` is this node's address on the network for gradients; None: the one on the way to node 0.
    """

    def __init__(self, address: str, port: int, own: str | None) -> None:
        self._where = (address, port)
        self._own = own
        self.own_address: str | None = None  # once it is connected
        self._connection: socket.socket | None = None
        self._ends: Ends | None = None  # of a connection that stands
        self._poll = select.poll()
        self._next_s = running_s()  # of the next try; or until which this one may take
        self._reason = ""  # why it is not connected, as it was last reported

    @property
    def is_cut_off(self) -> bool:
        """Whether it was connected, and is not any more."""
        return self.own_address is not None and self._ends is None

    def tick(self) -> list[Message]:
        """What is new, as messages to the leader."""
        try:
            if self._connection is None and running_s() >= self._next_s:
                self._begin()
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

    def _begin(self) -> None:
        """Begin to connect.

        Raises:
            OSError: that is not possible.
        """
        address = self._where[0]
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self._connection = connection
        self._poll.register(connection, select.POLLOUT)
        self._next_s = running_s() + NODE_0_REACHED_S
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        _watch(connection)
        if self._own is not None:
            connection.bind((self._own, 0))
        with suppress(BlockingIOError):  # it goes on
            connection.connect(self._where)

    def _conclude(self, connection: socket.socket) -> list[Message]:
        """See whether the try that was begun has had success.

        Raises:
            OSError: it has not.
        """
        if not self._poll.poll(0):
            if running_s() >= self._next_s:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            return []
        if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        ends = _ends_of(connection)
        self._ends = ends
        self.own_address = ends[0]
        self._poll.modify(connection, ENDS)
        self._reason = ""
        return [{"connected": _as_message(ends)}]

    def _failed(self, reason: str) -> list[Message]:
        """Report why a try had no success, where that is new; the next one comes soon."""
        self.close()
        self._next_s = running_s() + NODE_0_TRIED_AGAIN_S
        if reason == self._reason:
            return []
        self._reason = reason
        return [{"unreached": reason}]


def ends_in(message: Message) -> Ends:
    """The ends that such a message names."""
    own_address, own_port = message["own"]
    peer_address, peer_port = message["peer"]
    return own_address, own_port, peer_address, peer_port


def _ends_of(connection: socket.socket) -> Ends:
    own = connection.getsockname()
    peer = connection.getpeername()
    return own[0], own[1], peer[0], peer[1]


def _as_message(ends: Ends) -> Message:
    own_address, own_port, peer_address, peer_port = ends
    return {"own": [own_address, own_port], "peer": [peer_address, peer_port]}


def _broken(ends: Ends, connection: socket.socket) -> Message:
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    how = "silent" if error in UNREACHABLE else "closed"
    return {"broken": {**_as_message(ends), "how": how}}


def _watch(connection: socket.socket) -> None:
    """Have the kernel ask whether the other end lives, and call it dead where it does not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_EVERY_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_EVERY_S),
        (socket.TCP_KEEPCNT, int(AGENT_LOST_WHEN_SILENT_S) // KEEPALIVE_EVERY_S - 1),
        (socket.TCP_USER_TIMEOUT, int(AGENT_LOST_WHEN_SILENT_S * 1000)),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _server(node: str, address: str, ports: Sequence[int]) -> socket.socket:
    """A server at the first free one of these ports."""
    error = OSError("no port given")
    for port in ports:
        server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # accepted inherit
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
        f"{node} cannot listen at {address}, port {tried} "
        f"({(error.strerror or str(error)).lower()}); "
        "is that its address on the network between the nodes?"
    )


def _master_port(assignment: Assignment) -> int:
    if assignment.master_port is None:
        return free_port(ports=among(assignment.spec.ports))
    if not is_free(assignment.master_port):
        raise MusterError(
            f"--master-port {assignment.master_port} is in use on {assignment.name}; choose "
            "another, or leave it out: a free one is found"
        )
    return assignment.master_port
