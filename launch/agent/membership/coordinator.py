"""The agent of node 0: all others connect to it, and it has all of them start, or stop."""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from launch.agent.assignment import Assignment
from launch.agent.membership.peers import TELL_S, Link, Peers, proof, shows, who
from launch.nodes.ports import among, free_port, is_free
from muster.errors import MusterError

# Whoever connects has so long to show that it is of this run.
HELLO_S = 10.0
SPARE_STRANGERS = 64  # besides one for each client, at a time
ACCEPTS = 256  # at a time


class Coordinator(Peers):
    """The agent that the others connect to.

    Raises:
        MusterError: on creation; node 0 cannot listen at the address it should have.
    """

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._server = _listen(assignment)
        self.port: int = self._server.getsockname()[1]
        self._strangers: list[Link] = []
        self._let_go = False  # all have been told that they may leave
        self._clients: dict[int, Link] = {}

    def tick(self) -> None:
        self._accept()
        for link in list(self._strangers):
            self._introduce(link)
        for link in self._clients.values():
            for message in link.channel.receive():
                self._take(link, message)
        if self.master_port is None:
            self._gather()
        for link in self._clients.values():
            if trouble := link.trouble():
                self._lose(trouble)

    def fail(self, reason: str) -> None:
        self._lose(reason)

    def settled(self) -> bool:
        if not all(link.is_done or link.is_lost() for link in self._clients.values()):
            return False
        if not self._let_go:
            self._let_go = True
            self._tell(go=True)
        return True

    def close(self) -> None:
        self._close_door()
        super().close()

    def _lose(self, reason: str) -> None:
        if self.trouble is None:
            self.trouble = reason
            self._tell(stop=reason)

    def _links(self) -> Iterator[Link]:
        yield from [*self._clients.values()]

    def _close_door(self) -> None:
        self._server.close()
        for link in list(self._strangers):
            self._send_away(link)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                connection, _ = self._server.accept()
            except OSError:  # nobody is there to be accepted, or all are here
                return
            self._make_room()
            try:
                self._strangers.append(Link(connection))
            except OSError:  # it has gone already
                connection.close()

    def _make_room(self) -> None:
        """One address with many connections does not keep the others out."""
        if len(self._strangers) < self.assignment.count + SPARE_STRANGERS:
            return
        addresses = Counter(link.peer_address for link in self._strangers)
        ((most, _),) = addresses.most_common(1)
        self._send_away(next(link for link in self._strangers if link.peer_address == most))

    def _send_away(self, link: Link) -> None:
        self._strangers.remove(link)
        link.drop()

    def _introduce(self, link: Link) -> None:
        """Hear one that has not shown yet who it is, for a while."""
        token, port = self.assignment.token, self.port
        for message in link.channel.receive():
            if link.peer_nonce is None:
                link.peer_nonce = str(message.get("nonce", ""))
                shown = proof(token, "coordinator", port, link.peer_nonce, link.own_nonce)
                link.channel.send(nonce=link.own_nonce, shown=shown)
                continue
            self._strangers.remove(link)
            facts = [link.peer_nonce, link.own_nonce, *map(str, who(message))]
            if shows(message, token, "client", port, *facts):
                self._welcome(link, *who(message))
            else:
                link.drop()
            return
        if link.channel.ended or link.age_s > HELLO_S:
            self._send_away(link)

    def _welcome(self, link: Link, index: int, name: str, workers: int) -> None:
        if (
            link.channel.ended
        ):  # held up, this agent hears of one that has given up, and comes again
            link.drop()
            return
        link.trust()
        link.name, link.workers = name, workers
        link.channel.send(welcome=True)
        if index in self._clients or not 0 < index < self.assignment.count:
            self._lose(
                f"two agents say they are number {index}: {link.place} and "
                f"{self._clients[index].place if index in self._clients else 'this one'}; "
                "name each node once"
            )
        self._clients[index] = link
        self.heartbeat.add(link.channel)

    def _take(self, link: Link, message: dict[str, Any]) -> None:
        if "asked" in message:
            link.channel.send(asked=message["asked"], answered=time.time())
        if message.get("done"):
            link.is_leaving = link.is_done = True
        if "inspected" in message:
            self.inspections.append(message)
        if "failed" in message:
            link.is_leaving = True
            self._lose(str(message["failed"]))

    def _gather(self) -> None:
        missing = set(range(1, self.assignment.count)) - set(self._clients)
        if missing:
            names = ", ".join(f"node {index}" for index in sorted(missing))
            if self._waited_s() > self.assignment.join_s:
                self._lose(
                    f"after {self.assignment.join_s:.0f} s still missing: {names} of "
                    f"{self.assignment.count}; can it reach "
                    f"{self.assignment.coordinator_address}, and is no firewall between?"
                )
            self.waiting = f"waiting for {names}" if self._waited_s() > TELL_S else None
            return
        try:
            self.master_port = _master_port(self.assignment)
        except MusterError as error:
            self._lose(str(error))
            return
        others = [self._clients[index].workers for index in sorted(self._clients)]
        self.workers = [self.assignment.workers, *others]
        self._tell(start=self.master_port, workers=self.workers)
        self._close_door()  # nobody else is expected


def _listen(assignment: Assignment) -> socket.socket:
    last: OSError | None = None
    family = socket.AF_INET6 if ":" in assignment.coordinator_address else socket.AF_INET
    for port in assignment.coordinator_ports:
        try:
            server = socket.create_server(
                (assignment.coordinator_address, port), family=family, backlog=128
            )
        except OSError as error:
            last = error
            continue
        server.setblocking(False)
        return server
    tried = assignment.coordinator_ports
    ports = f"{tried[0]} to {tried[-1]}" if len(tried) > 1 else "".join(map(str, tried))
    raise MusterError(
        f"{assignment.name} cannot listen at {assignment.coordinator_address}, port {ports} "
        f"({(last.strerror or str(last)).lower() if last else 'no port given'}); "
        "is that its address on the network between the nodes?"
    )


def _master_port(assignment: Assignment) -> int:
    if assignment.master_port is None:
        return free_port(ports=among(assignment.ports))
    if not is_free(assignment.master_port):
        raise MusterError(
            f"--master-port {assignment.master_port} is in use on {assignment.name}; choose "
            "another, or leave it out: a free one is found"
        )
    return assignment.master_port
