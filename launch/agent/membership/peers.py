"""The agents of a run meet on the network that its gradients take, and watch each other there.

All connect to the agent of node 0, and both sides show that they know the run's token: see
`door.py`. When all are there, node 0 finds a port for torch and has everyone start. From then on
each says every second that it lives; a closed connection means at once, and silence after
`SILENT_S`, that a node is lost, and whoever notices has all others stop. Nobody leaves before all
have written down how they ended: whoever leads the run may end those that are slower.
"""

import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from launch.nodes.channel import BEAT_S, LINE_BYTES, SILENT_S, Channel, Heartbeat
from launch.spec import Assignment

TELL_S = 10.0  # after which whoever waits says for whom
HELLO_BYTES = 4_096  # that one may send before it has shown the token
PART_S = 1.0


class Link:
    """One connection between two agents."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_address: str = connection.getpeername()[0]
        self.own_address: str = connection.getsockname()[0]
        self._socket = connection
        self._began = time.monotonic()
        self.channel = Channel(connection.fileno(), connection.fileno(), line_bytes=LINE_BYTES)
        self.channel.allowance_bytes = HELLO_BYTES
        self.own_nonce = secrets.token_hex(16)
        self.peer_nonce: str | None = None  # once it has come
        self.name = self.peer_address
        self.workers = 0
        self.is_leaving = False  # the other side has said that it ends
        self.is_done = False  # and has written down how

    @property
    def place(self) -> str:
        return f"{self.name} ({self.peer_address})"

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    def trust(self) -> None:
        """The other side has shown that it knows the token."""
        self.channel.allowance_bytes = None

    def keep(self) -> Channel:
        """The channel alone, which owns the connection from now on."""
        self._socket.detach()
        return self.channel

    def drop(self) -> None:
        """Close the connection at once, whatever was not said or taken yet."""
        self.keep().close()

    def shut(self) -> None:
        """Say that nothing more will be said."""
        if not self.channel.ended:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.channel.ended = True

    def is_lost(self) -> str | None:
        """Why nothing more will come through this link; None while it works."""
        if self.channel.ended:
            return f"{self.place} is gone: its agent was killed, or the node went down"
        if self.channel.silent_s > SILENT_S:
            return f"heard nothing from {self.place} for {SILENT_S:.0f} s: is its link down?"
        return None

    def trouble(self) -> str | None:
        """Why this link can no longer be relied on."""
        return None if self.is_leaving else self.is_lost()


def part(links: Sequence[Link]) -> None:
    """Close all links, so that the other sides get what was said last, and not a reset for it."""
    deadline = time.monotonic() + PART_S
    while time.monotonic() < deadline and any(
        link.channel.waiting_bytes and not link.channel.ended for link in links
    ):
        for link in links:
            link.channel.flush()
        time.sleep(0.01)
    for link in links:
        link.shut()
    while time.monotonic() < deadline and not all(link.channel.ended for link in links):
        for link in links:
            link.channel.receive()
        time.sleep(0.01)
    for link in links:
        link.drop()


class Peers:
    """What coordinator and clients have in common.

    `master_port` and `workers` are known once all have met; `trouble` says why it cannot go on.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.master_port: int | None = None
        self.workers: list[int] = []  # of each agent, once all have met
        self.trouble: str | None = None
        self.own_address = assignment.coordinator_address
        self.clock_offset_s = 0.0  # to add to this node's clock to have the coordinator's
        self.heartbeat = Heartbeat()
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
        """Say that this node has done its part, and has written down how it ended."""
        self._tell(done=True)

    def fail(self, reason: str) -> None:
        """Have all others stop, since this node cannot go on."""
        self._tell(failed=reason)

    def settled(self) -> bool:
        """Whether this agent, done itself, may leave."""
        raise NotImplementedError

    def close(self) -> None:
        self.heartbeat.stop()
        part(list(self._links()))

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
            link.channel.send(**message)


def proof(token: str, role: str, *facts: str | int) -> str:
    """What only one who knows the token can say of `facts`, among them a nonce of each side."""
    text = json.dumps([role, *facts])
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def shows(message: dict[str, Any], token: str, role: str, *facts: str | int) -> bool:
    """Whether a message has the proof of `facts`."""
    return hmac.compare_digest(
        str(message.get("shown", "")).encode(), proof(token, role, *facts).encode()
    )
