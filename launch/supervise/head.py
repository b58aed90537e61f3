"""The agent of node 0: all others connect to it, and it has all of them start, or stop."""

import socket
import time
from collections.abc import Iterator
from typing import Any

from configs.errors import MusterError
from launch.supervise.assignment import Assignment
from launch.supervise.peers import SILENT_S, Link, Peers, proof, shows
from launch.supervise.ports import free_port, is_free

TELL_S = 10.0  # after which it says for whom all wait


class Head(Peers):
    """The agent that the others connect to.

    Raises:
        MusterError: on creation; node 0 cannot listen at the address it should have.
    """

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._server = _listen(assignment)
        self.port: int = self._server.getsockname()[1]
        self._strangers: list[Link] = []
        self._members: dict[int, Link] = {}

    def tick(self) -> None:
        self._accept()
        for link in list(self._strangers):
            self._introduce(link)
        for link in self._members.values():
            for message in link.wire.receive():
                self._take(link, message)
        if self.master_port is None:
            self._gather()
        for link in self._members.values():
            if trouble := link.trouble():
                self._lose(trouble)

    def fail(self, reason: str) -> None:
        self._lose(reason)

    def settled(self) -> bool:
        return all(link.said_done or link.wire.ended for link in self._members.values())

    def close(self) -> None:
        super().close()
        self._server.close()

    def _lose(self, reason: str) -> None:
        if self.trouble is None:
            self.trouble = reason
            self._tell(stop=reason)

    def _links(self) -> Iterator[Link]:
        yield from [*self._members.values()]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # nobody is there to be accepted
                return
            self._strangers.append(Link(connection))

    def _introduce(self, link: Link) -> None:
        for message in link.wire.receive()[:1]:
            self._strangers.remove(link)
            index = message.get("index")
            if not shows(message, self.assignment.token, "member") or not isinstance(index, int):
                link.close()
                return
            link.name = str(message.get("name", ""))[:200]
            link.workers = int(message.get("workers", 1))
            link.wire.send(welcome=True, shown=proof(self.assignment.token, "head"))
            if index in self._members or not 0 < index < self.assignment.count:
                self._lose(
                    f"two agents say they are number {index}: {link.place} and "
                    f"{self._members[index].place if index in self._members else 'this one'}; "
                    "name each node once"
                )
            self._members[index] = link
            return
        if link.wire.ended or link.wire.silent_s > SILENT_S:
            self._strangers.remove(link)
            link.close()

    def _take(self, link: Link, message: dict[str, Any]) -> None:
        if "asked" in message:
            link.wire.send(asked=message["asked"], answered=time.time())
        if message.get("done"):
            link.said_done = True
        if "failed" in message:
            link.said_done = True
            self._lose(str(message["failed"]))

    def _gather(self) -> None:
        missing = set(range(1, self.assignment.count)) - set(self._members)
        if missing:
            names = ", ".join(f"node {index}" for index in sorted(missing))
            if self._waited_s() > self.assignment.join_s:
                self._lose(
                    f"after {self.assignment.join_s:.0f} s still missing: {names} of "
                    f"{self.assignment.count}; can it reach {self.assignment.head_address}, and "
                    "is no firewall between?"
                )
            self.waiting = f"waiting for {names}" if self._waited_s() > TELL_S else None
            return
        try:
            self.master_port = _master_port(self.assignment)
        except MusterError as error:
            self._lose(str(error))
            return
        others = [self._members[index].workers for index in sorted(self._members)]
        self.workers = [self.assignment.workers, *others]
        self._tell(start=self.master_port, workers=self.workers)


def _listen(assignment: Assignment) -> socket.socket:
    last: OSError | None = None
    family = socket.AF_INET6 if ":" in assignment.head_address else socket.AF_INET
    for port in assignment.head_ports:
        try:
            server = socket.create_server(
                (assignment.head_address, port), family=family, backlog=128
            )
        except OSError as error:
            last = error
            continue
        server.setblocking(False)
        return server
    ports = ", ".join(map(str, assignment.head_ports))
    raise MusterError(
        f"{assignment.name} cannot listen at {assignment.head_address}, port {ports} "
        f"({(last.strerror or str(last)).lower() if last else 'no port given'}); "
        "is that its address on the network between the nodes?"
    )


def _master_port(assignment: Assignment) -> int:
    if assignment.master_port is None:
        return free_port()
    if not is_free(assignment.master_port):
        raise MusterError(
            f"--master-port {assignment.master_port} is in use on {assignment.name}; choose "
            "another, or leave it out: a free one is found"
        )
    return assignment.master_port
