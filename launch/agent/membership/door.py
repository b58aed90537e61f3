"""Connections between the agents of a run: both sides show that they know its token.

    agent -> door    nonce
    door -> agent    nonce, shown: a proof of the token over both nonces and the door's port
    agent -> door    who: its index, name, workers and address; shown: a proof over this, too
    door -> agent    welcome

A proof is of no use on another connection, or through another port. Before it the other side is a
stranger: whatever it sends, only its own connection ends. After it an odd form is that agent's
failure.

What the agent of a Slurm job is to run, which it gets through such a connection, has a proof of
its own, and none of the user's secrets: those are in a file that only their owner may read.
"""

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from launch.nodes.channel import SILENT_S, Channel
from launch.nodes.running_time import running_s
from launch.spec import Assignment
from muster.errors import MusterError
from muster.run_files import SECRETS
from muster.writing import read_json

# The time and the bytes that a new connection has for its proof.
HELLO_S, HELLO_BYTES = 10.0, 4_096
NAME_CHARACTERS, WORKERS = 255, 4_096  # at most, of one node
# How many connections may wait for their proof at a time, since each is an open file; if there are
# so many, the time that one has for it.
STRANGERS, ROOM_S = 128, 1.0
ACCEPTS = 256  # connections accepted at a time


class Link:
    """One connection between two agents."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_address: str = connection.getpeername()[0]
        self.own_address: str = connection.getsockname()[0]
        self.began = running_s()
        descriptor = connection.detach()
        self.channel = Channel(descriptor, descriptor)
        self.channel.allowance_bytes = HELLO_BYTES
        self.own_nonce = secrets.token_hex(16)
        self.peer_nonce: str | None = None  # once it was received
        self.name = self.peer_address

    @property
    def place(self) -> str:
        return f"{self.name} ({self.peer_address})"

    def trust(self) -> None:
        """Called when the other side has proved that it knows the token."""
        self.channel.allowance_bytes = None


def loss_of(channel: Channel, place: str, patience_s: float = SILENT_S) -> str | None:
    """Why nothing more can come from the agent at `place`; None while it lives."""
    if channel.ended:
        either = "its agent was killed, or the node went down, or the connection to it was cut"
        return f"{place} is gone: {either}"
    if channel.silent_s > patience_s:
        return f"heard nothing from {place} for {patience_s:.0f} s: is its link down?"
    return None


@dataclass(frozen=True)
class Who:
    """An agent, as it describes itself."""

    index: int
    name: str
    workers: int
    address: str = ""  # where the other agents connect to it

    @classmethod
    def from_text(cls, text: str) -> "Who":
        """An agent's description of itself.

        Raises:
            ValueError: it has no form of ours.
        """
        try:
            who = cls(**json.loads(text))
            if [type(value) for value in asdict(who).values()] != [int, str, int, str]:
                raise TypeError
            if not (who.name.isprintable() and 0 < len(who.name) <= NAME_CHARACTERS):
                raise ValueError
            if who.index < 0 or not 0 <= who.workers <= WORKERS:
                raise ValueError
            if who.address:
                ipaddress.ip_address(who.address)
        except (RecursionError, TypeError, ValueError):
            raise ValueError(f"it says {text[:200]!a} of itself") from None
        return who


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
        """The agents that have proved since the last call that they know the token.

        Raises:
            MusterError: one of them describes itself in a form that is not ours.
        """
        self._accept()
        for link in list(self.strangers):
            try:
                description = self._proved(link)
            except Exception:  # noqa: BLE001  whatever a stranger sends, it ends nothing else
                self._drop(link)
                continue
            if description is None:
                continue
            self.strangers.remove(link)
            link.trust()
            try:
                who = Who.from_text(description)
            except ValueError as error:
                link.channel.close()
                raise MusterError(f"odd agent at {link.peer_address}: {error}") from None
            link.name = who.name
            link.channel.send(welcome=True)
            yield link, who

    def close(self) -> None:
        self._server.close()
        for link in self.strangers:
            link.channel.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if len(self.strangers) >= STRANGERS and not self._make_room():
                return  # others wait in the kernel's queue
            try:
                connection, _ = self._server.accept()
            except OSError:  # no connection to accept, or this process has too many files open
                return
            try:
                self.strangers.append(Link(connection))
            except OSError:  # it has closed already
                connection.close()

    def _make_room(self) -> bool:
        """Leave the stranger that came first, once it has had time; false: none has."""
        oldest = self.strangers[0]
        if running_s() - oldest.began < ROOM_S:
            return False
        self._drop(oldest)
        return True

    def _proved(self, link: Link) -> str | None:
        """What an agent says of itself, once it has proved that it knows the token.

        Raises:
            Exception: of any kind; the other side is no agent of this run.
        """
        for message in link.channel.receive():
            if link.peer_nonce is None:
                link.peer_nonce = _text_of(message, "nonce")
                facts = self.port, link.peer_nonce, link.own_nonce
                link.channel.send(
                    nonce=link.own_nonce, shown=proof(self._token, "coordinator", *facts)
                )
                continue
            description = _text_of(message, "who")
            facts = self.port, link.peer_nonce, link.own_nonce
            # if this process was blocked, an agent may have given up and connected again
            if link.channel.ended or not shows(message, self._token, "client", *facts, description):
                self._drop(link)
                return None
            return description
        if link.channel.ended or running_s() - link.began > HELLO_S:
            self._drop(link)
        return None

    def _drop(self, link: Link) -> None:
        self.strangers.remove(link)
        link.channel.close()


def enter(
    where: tuple[str, int], token: str, who: Who, *, wait_s: float, own: str | None = None
) -> Link:
    """Go in by the door that is `where`, from this machine's address `own`.

    Raises:
        MusterError: nobody is there within `wait_s`, or none that knows the token.
    """
    place = f"{who.name} could not reach its leader at {where[0]}, port {where[1]}"
    try:
        link = Link(socket.create_connection(where, wait_s, (own, 0) if own else None))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(f"{place} ({why}); is a firewall between?") from None
    channel = link.channel
    channel.send(nonce=link.own_nonce)
    answer = channel.first("nonce", patience_s=wait_s, within_s=HELLO_S) or {}
    facts = where[1], link.own_nonce, _text_of(answer, "nonce")
    if not shows(answer, token, "coordinator", *facts):
        channel.close()
        raise MusterError(
            f"{place}: another program listens there; start the run again, or choose --port-range"
        )
    link.trust()
    description = json.dumps(asdict(who))
    channel.send(who=description, shown=proof(token, "client", *facts, description))
    if channel.first("welcome") is None:
        channel.close()
        raise MusterError(f"{place}: the leader closed the connection; see the leader's output")
    return link


def proof(token: str, role: str, *facts: str | int) -> str:
    """A proof of `facts`, with a nonce of each side, that needs the token."""
    text = json.dumps([role, *facts])
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def shows(message: Mapping[str, Any], token: str, role: str, *facts: str | int) -> bool:
    """Whether a message has the proof of `facts`."""
    shown = _text_of(message, "shown")
    return shown.isascii() and hmac.compare_digest(shown, proof(token, role, *facts))


def _text_of(message: Mapping[str, Any], name: str) -> str:
    """A text in a message of a stranger; empty where that is none."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def sealed(assignment: Assignment, token: str, task: int) -> dict[str, Any]:
    """The message with the assignment of the agent of this task, to be sent over a network."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    return {"assignment": plain, "shown": proof(token, "assignment", task, _text(plain))}


def unsealed(message: Mapping[str, Any], token: str, task: int) -> Assignment:
    """The assignment in a message, for the agent of this task.

    Raises:
        MusterError: its sender does not know the token, or it is for another agent.
    """
    plain = message["assignment"]
    try:
        is_own = shows(message, token, "assignment", task, _text(plain))
    except RecursionError:  # it is nested too deeply to be one
        is_own = False
    if not is_own:
        raise MusterError(
            "the assignment of this agent is not from its leader; start the run again"
        )
    assignment = Assignment.from_json(plain)
    secrets = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=secrets or {}))


def _text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)
