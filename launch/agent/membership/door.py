"""Connections between the agents of a run: both sides prove that they know its token.

    agent -> door    nonce
    door -> agent    nonce, shown: a proof of the token over both nonces and the door's port
    agent -> door    index, name, workers, address, shown: a proof over the same and these
    door -> agent    welcome

A proof is not valid on another connection, or through another port.
"""

import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launch.nodes.channel import SILENT_S, Channel

# The time and the bytes that a new connection has for its proof.
HELLO_S, HELLO_BYTES = 10.0, 4_096
ACCEPTS = 256  # connections accepted at a time
PART_S = 1.0


class Link:
    """One connection between two agents."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_address: str = connection.getpeername()[0]
        self.own_address: str = connection.getsockname()[0]
        self._socket = connection
        self._began = time.monotonic()
        self.channel = Channel(connection.fileno(), connection.fileno())
        self.channel.allowance_bytes = HELLO_BYTES
        self.own_nonce = secrets.token_hex(16)
        self.peer_nonce: str | None = None  # once it was received
        self.name = self.peer_address
        self.workers = 0
        self.is_leaving = False  # the other side has announced that it ends
        self.is_done = False  # and has recorded how

    @property
    def place(self) -> str:
        return f"{self.name} ({self.peer_address})"

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    def trust(self) -> None:
        """Called when the other side has proved that it knows the token."""
        self.channel.allowance_bytes = None

    def keep(self) -> Channel:
        """Return the channel, which owns the connection from now on."""
        self._socket.detach()
        return self.channel

    def drop(self) -> None:
        """Close the connection at once; unsent and unread data is lost."""
        self.keep().close()

    def shut(self) -> None:
        """Tell the other side that nothing more will be sent."""
        if not self.channel.ended:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.channel.ended = True

    def is_lost(self) -> str | None:
        """Why nothing more can come through this link; None while it works."""
        if self.channel.ended:
            return f"{self.place} is gone: its agent was killed, or the node went down"
        if self.channel.silent_s > SILENT_S:
            return f"heard nothing from {self.place} for {SILENT_S:.0f} s: is its link down?"
        return None

    def trouble(self) -> str | None:
        """Why this link cannot be relied on any more; None while it can."""
        return None if self.is_leaving else self.is_lost()


def part(links: Sequence[Link]) -> None:
    """Close all links so that the other sides get the last messages, not a connection reset."""
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


@dataclass(frozen=True)
class Who:
    """An agent, as it describes itself."""

    index: int
    name: str
    workers: int
    address: str = ""  # where the other agents connect to it

    @classmethod
    def of(cls, message: dict[str, Any]) -> "Who":
        """The agent that a message describes; the index is -1 if it is invalid."""
        index, workers = message.get("index"), message.get("workers")
        return cls(
            index if isinstance(index, int) else -1,
            str(message.get("name", ""))[:200],
            workers if isinstance(workers, int) else 1,
            str(message.get("address", ""))[:200],
        )

    @property
    def facts(self) -> tuple[str, ...]:
        """All fields, which the proof of the token covers."""
        return tuple(map(str, asdict(self).values()))


def listen(address: str, ports: Sequence[int]) -> socket.socket:
    """A server at `address`, or at all addresses, at the first free one of `ports`.

    Raises:
        OSError: none is free.
    """
    last = OSError("no port given")
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in address else socket.AF_INET
    for port in ports:
        try:
            server = socket.create_server(
                (address, port), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError as error:
            last = error
            continue
        server.setblocking(False)
        return server
    raise last


class Door:
    """A server that admits only agents that prove to know the run's token."""

    def __init__(self, server: socket.socket, token: str) -> None:
        self._server, self._token = server, token
        self.port: int = server.getsockname()[1]
        self.strangers: list[Link] = []

    def admitted(self) -> Iterator[tuple[Link, Who]]:
        """The agents that have proved since the last call that they know the token."""
        self._accept()
        for link in list(self.strangers):
            if (who := self._introduce(link)) is not None:
                yield link, who

    def close(self) -> None:
        self._server.close()
        for link in list(self.strangers):
            self._send_away(link)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, _ = self._server.accept()
            except OSError:  # no connection to accept
                return
            try:
                self.strangers.append(Link(connection))
            except OSError:  # it has closed already
                connection.close()

    def _send_away(self, link: Link) -> None:
        self.strangers.remove(link)
        link.drop()

    def _introduce(self, link: Link) -> Who | None:
        """Read the messages of a connection that has not proved itself yet, for a limited time."""
        for message in link.channel.receive():
            if link.peer_nonce is None:
                link.peer_nonce = str(message.get("nonce", ""))
                facts = self.port, link.peer_nonce, link.own_nonce
                link.channel.send(
                    nonce=link.own_nonce, shown=proof(self._token, "coordinator", *facts)
                )
                continue
            self.strangers.remove(link)
            who = Who.of(message)
            facts = self.port, link.peer_nonce, link.own_nonce
            shown = shows(message, self._token, "client", *facts, *who.facts)
            # if this process was blocked, an agent may have given up and connected again
            if not shown or link.channel.ended:
                link.drop()
                return None
            link.trust()
            link.name, link.workers = who.name, who.workers
            link.channel.send(welcome=True)
            return who
        if link.channel.ended or link.age_s > HELLO_S:
            self._send_away(link)
        return None


class Knock:
    """An agent's side of entering by a door, message by message."""

    def __init__(self, link: Link, port: int, token: str, who: Who) -> None:
        self.link, self.is_known, self.is_in = link, False, False
        self._port, self._token, self._who = port, token, who
        link.channel.send(nonce=link.own_nonce)

    def take(self, message: dict[str, Any]) -> None:
        """Prove the token to a door that has proved it; then be welcome."""
        if self.is_known:
            self.is_in = bool(message.get("welcome"))
            return
        link, nonce = self.link, str(message.get("nonce", ""))
        facts = self._port, link.own_nonce, nonce
        if not shows(message, self._token, "coordinator", *facts):
            link.channel.ended = True  # the port belongs to another program
            return
        self.is_known = True
        link.trust()
        shown = proof(self._token, "client", *facts, *self._who.facts)
        link.channel.send(**asdict(self._who), shown=shown)


def proof(token: str, role: str, *facts: str | int) -> str:
    """A proof of `facts`, with a nonce of each side, that needs the token."""
    text = json.dumps([role, *facts])
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def shows(message: dict[str, Any], token: str, role: str, *facts: str | int) -> bool:
    """Whether a message has the proof of `facts`."""
    return hmac.compare_digest(
        str(message.get("shown", "")).encode(), proof(token, role, *facts).encode()
    )
