"""Connections between the agents of a run: both sides show that they know its token.

    agent -> door    nonce
    door -> agent    nonce, shown: a proof of the token over both nonces and the door's port
    agent -> door    index, name, workers, address, shown: a proof over the same and these
    door -> agent    welcome

A proof is of no use on another connection, or through another port.
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

# Whoever connects has so long to show that it is of this run, and so much to send until then.
HELLO_S, HELLO_BYTES = 10.0, 4_096
ACCEPTS = 256  # at a time
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


@dataclass(frozen=True)
class Who:
    """An agent, as it says."""

    index: int
    name: str
    workers: int
    address: str = ""  # where the others are to meet it

    @classmethod
    def of(cls, message: dict[str, Any]) -> "Who":
        """What a message says; -1 for an index that is none."""
        index, workers = message.get("index"), message.get("workers")
        return cls(
            index if isinstance(index, int) else -1,
            str(message.get("name", ""))[:200],
            workers if isinstance(workers, int) else 1,
            str(message.get("address", ""))[:200],
        )

    @property
    def facts(self) -> tuple[str, ...]:
        """All of it, of which it is to have a proof that it knows the token."""
        return tuple(map(str, asdict(self).values()))


def listen(address: str, ports: Sequence[int]) -> socket.socket:
    """A server at `address`, or at all of this machine's, at the first of `ports` that is free.

    Raises:
        OSError: none is.
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
    """A server that lets in whoever shows the run's token, and nobody else."""

    def __init__(self, server: socket.socket, token: str) -> None:
        self._server, self._token = server, token
        self.port: int = server.getsockname()[1]
        self.strangers: list[Link] = []

    def admitted(self) -> Iterator[tuple[Link, Who]]:
        """Those that have shown since the last time that they know the token."""
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
            except OSError:  # nobody is there to be accepted, or all are here
                return
            try:
                self.strangers.append(Link(connection))
            except OSError:  # it has gone already
                connection.close()

    def _send_away(self, link: Link) -> None:
        self.strangers.remove(link)
        link.drop()

    def _introduce(self, link: Link) -> Who | None:
        """Hear one that has not shown yet who it is, for a while."""
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
            # held up, this process may hear of one that has given up, and comes again
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
    """Going in by a door: what an agent says there, message by message."""

    def __init__(self, link: Link, port: int, token: str, who: Who) -> None:
        self.link, self.is_known, self.is_in = link, False, False
        self._port, self._token, self._who = port, token, who
        link.channel.send(nonce=link.own_nonce)

    def take(self, message: dict[str, Any]) -> None:
        """Show the token to one that has shown that it knows it; then be welcome."""
        if self.is_known:
            self.is_in = bool(message.get("welcome"))
            return
        link, nonce = self.link, str(message.get("nonce", ""))
        facts = self._port, link.own_nonce, nonce
        if not shows(message, self._token, "coordinator", *facts):
            link.channel.ended = True  # somebody else's port
            return
        self.is_known = True
        link.trust()
        shown = proof(self._token, "client", *facts, *self._who.facts)
        link.channel.send(**asdict(self._who), shown=shown)


def proof(token: str, role: str, *facts: str | int) -> str:
    """What only one who knows the token can say of `facts`, among them a nonce of each side."""
    text = json.dumps([role, *facts])
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def shows(message: dict[str, Any], token: str, role: str, *facts: str | int) -> bool:
    """Whether a message has the proof of `facts`."""
    return hmac.compare_digest(
        str(message.get("shown", "")).encode(), proof(token, role, *facts).encode()
    )
