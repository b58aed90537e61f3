"""The agents of a run meet on the network that its gradients take, and watch each other there.

All connect to the agent of node 0. When all are there, it finds a port for torch and has everyone
start. From then on each says every second that it lives; a closed connection means at once, and
silence after `SILENT_S`, that a node is lost, and whoever notices has all others stop.
"""

import hmac
import socket
import time
from collections.abc import Iterator
from typing import Any

from launch.supervise.assignment import Assignment
from launch.supervise.wire import Wire

BEAT_S = 1.0
SILENT_S = 15.0
TELL_S = 10.0  # after which whoever waits says for whom
HELLO_BYTES = 65_536
PART_S = 1.0


class Link:
    """One connection between two agents."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_address: str = connection.getpeername()[0]
        self.own_address: str = connection.getsockname()[0]
        self._socket = connection
        self.wire = Wire(connection.fileno(), connection.fileno(), line_bytes=HELLO_BYTES)
        self.name = self.peer_address
        self.workers = 0
        self.said_done = False

    @property
    def place(self) -> str:
        return f"{self.name} ({self.peer_address})"

    def close(self) -> None:
        """Part so that the other side still gets what was said last, and not a reset for it."""
        deadline = time.monotonic() + PART_S
        while self.wire.waiting_bytes and not self.wire.ended and time.monotonic() < deadline:
            self.wire.flush()
            time.sleep(0.01)
        if not self.wire.ended:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.wire.ended = True
        while not self.wire.ended and time.monotonic() < deadline:
            self.wire.receive()
            time.sleep(0.01)
        self._socket.detach()
        self.wire.close()

    def trouble(self) -> str | None:
        """Why this link can no longer be relied on."""
        if self.said_done:
            return None
        if self.wire.ended:
            return f"{self.place} is gone: its agent was killed, or the node went down"
        if self.wire.silent_s > SILENT_S:
            return f"heard nothing from {self.place} for {SILENT_S:.0f} s: is its link down?"
        return None


class Peers:
    """What head and members have in common.

    `master_port` and `workers` are known once all have met; `trouble` says why it cannot go on.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.master_port: int | None = None
        self.workers: list[int] = []  # of each agent, once all have met
        self.trouble: str | None = None
        self.own_address = assignment.head_address
        self.clock_offset_s = 0.0  # to add to this node's clock to have the head's
        self._began = time.monotonic()
        self._beaten = 0.0
        self.waiting: str | None = None  # for whom, once that has taken a while

    @property
    def ranks(self) -> list[int]:
        """Those of this agent's workers."""
        index = self.assignment.index
        first = sum(self.workers[:index])
        return list(range(first, first + self.workers[index])) if self.workers else []

    def tick(self) -> None:
        """Take and send what is due; to be called many times a second."""
        raise NotImplementedError

    def done(self) -> None:
        """Say that this node has done its part."""
        self._tell(done=True)

    def fail(self, reason: str) -> None:
        """Have all others stop, since this node cannot go on."""
        self._tell(failed=reason)

    def settled(self) -> bool:
        """Whether this agent, done itself, may leave."""
        return True

    def close(self) -> None:
        for link in self._links():
            link.close()

    def _links(self) -> Iterator[Link]:
        raise NotImplementedError

    def _beat_is_due(self) -> bool:
        if time.monotonic() - self._beaten < BEAT_S:
            return False
        self._beaten = time.monotonic()
        return True

    def _waited_s(self) -> float:
        return time.monotonic() - self._began

    def _tell(self, **message: Any) -> None:
        for link in self._links():
            link.wire.send(**message)


def proof(token: str, role: str) -> str:
    return hmac.new(token.encode(), role.encode(), "sha256").hexdigest()


def shows(message: dict[str, Any], token: str, role: str) -> bool:
    return hmac.compare_digest(str(message.get("shown", "")), proof(token, role))
