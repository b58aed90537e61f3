"""Where the agents of a run connect, and how they get in: both sides show that they know its token.

    agent -> door    nonce
    door -> agent    nonce, shown: a proof of the token over both nonces and the door's port
    agent -> door    index, name, workers, address, shown: a proof over the same and these
    door -> agent    welcome

A proof is of no use on another connection, or through another port. What an agent is to run, which
it is told through that connection, has a proof of its own, and none of the user's secrets: those
are in a file that only their owner may read.
"""

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from launch.agent.membership.peers import Link, proof, shows
from launch.nodes.channel import Channel
from launch.spec import Assignment
from muster.errors import MusterError
from muster.run_files import SECRETS
from muster.writing import read_json

# Whoever connects has so long to show that it is of this run.
HELLO_S = 10.0
SPARE_STRANGERS = 64  # besides one for each agent, at a time
ACCEPTS = 256  # at a time
CONNECT_S, ANSWER_S, LOOK_S = 10.0, 30.0, 0.02


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

    def shown(self, token: str, port: int, client_nonce: str, door_nonce: str) -> str:
        """The proof that this agent knows the token."""
        return proof(token, "client", port, client_nonce, door_nonce, *self._facts())

    def is_shown(self, message: dict[str, Any], token: str, port: int, *nonces: str) -> bool:
        """Whether a message has that proof."""
        return shows(message, token, "client", port, *nonces, *self._facts())

    def _facts(self) -> tuple[str, ...]:
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

    def __init__(self, server: socket.socket, token: str, count: int) -> None:
        self._server, self._token, self._count = server, token, count
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
            self._make_room()
            try:
                self.strangers.append(Link(connection))
            except OSError:  # it has gone already
                connection.close()

    def _make_room(self) -> None:
        """One address with many connections does not keep the others out."""
        if len(self.strangers) < self._count + SPARE_STRANGERS:
            return
        addresses = Counter(link.peer_address for link in self.strangers)
        ((most, _),) = addresses.most_common(1)
        self._send_away(next(link for link in self.strangers if link.peer_address == most))

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
            shown = who.is_shown(message, self._token, self.port, link.peer_nonce, link.own_nonce)
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
        link.channel.send(**asdict(self._who), shown=self._who.shown(self._token, *facts))


def enter(address: str, port: int, token: str, who: Who) -> Channel:
    """Go in by the door at `address`; the way to whoever opened it.

    Raises:
        MusterError: nobody is there, or none that knows the token.
    """
    place = f"{who.name} could not reach its leader at {address}, port {port}"
    try:
        link = Link(socket.create_connection((address, port), CONNECT_S))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(f"{place} ({why}); is a firewall between?") from None
    knock = Knock(link, port, token, who)
    while not knock.is_in and not link.channel.ended and link.age_s < ANSWER_S:
        messages = link.channel.receive()
        if messages:
            link.channel.put_back(messages[1:])
            knock.take(messages[0])
        else:
            time.sleep(LOOK_S)
    if not knock.is_known:
        raise MusterError(
            f"{place}: another program listens there; start the run again, or choose --port-range"
        )
    if not knock.is_in:
        raise MusterError(
            f"{place}: the leader closed the connection; see what the leader itself says"
        )
    return link.keep()


def sealed(assignment: Assignment, token: str) -> dict[str, Any]:
    """The message that tells an agent what to do, through a network."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    return {"assignment": plain, "shown": proof(token, "assignment", _text(plain))}


def unsealed(message: Mapping[str, Any], token: str, index: int) -> Assignment:
    """What it says, for the agent of this index.

    Raises:
        MusterError: it is not from one that knows the token, or for another.
    """
    plain = message["assignment"]
    if not shows(dict(message), token, "assignment", _text(plain)) or plain["index"] != index:
        raise MusterError("what this agent was told to do is not from its leader")
    assignment = Assignment.from_json(plain)
    secrets = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=secrets or {}))


def _text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)
