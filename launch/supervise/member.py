"""The agent of a node other than 0: it finds node 0, and starts and stops when told."""

import socket
import time
from collections.abc import Iterator
from typing import Any

from launch.supervise.assignment import Assignment
from launch.supervise.peers import Link, Peers, proof, shows

CONNECT_S = 1.0
ANSWER_S = 3.0


class Member(Peers):
    """An agent that connects to the head."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._link: Link | None = None
        self._welcome = False
        self._candidates = list(assignment.head_ports)
        self._best_s = float("inf")

    def tick(self) -> None:
        if self._link is None:
            self._connect()
            return
        link = self._link
        for message in link.wire.receive():
            self._take(message)
        if not self._welcome:
            if link.wire.ended or link.wire.silent_s > ANSWER_S:
                self._link = None  # somebody else's port
                link.close()
            return
        if self._beat_is_due():
            link.wire.send(asked=time.time())
        if trouble := link.trouble():
            self.trouble = self.trouble or trouble

    def _links(self) -> Iterator[Link]:
        if self._link is not None:
            yield self._link

    def _connect(self) -> None:
        if self._waited_s() > self.assignment.join_s:
            address, ports = self.assignment.head_address, self.assignment.head_ports
            self.trouble = (
                f"{self.assignment.name} could not reach node 0 at {address} (port "
                f"{', '.join(map(str, ports))}) for {self.assignment.join_s:.0f} s; is that its "
                "address on this network, and is no firewall between?"
            )
            return
        port = self._candidates.pop(0)
        self._candidates.append(port)
        own = self.assignment.address
        try:
            connection = socket.create_connection(
                (self.assignment.head_address, port), CONNECT_S, (own, 0) if own else None
            )
        except OSError:
            return
        self._link = Link(connection)
        self._link.name = "node 0"
        self.own_address = self._link.own_address
        self._link.wire.send(
            index=self.assignment.index,
            name=self.assignment.name,
            workers=self.assignment.workers,
            shown=proof(self.assignment.token, "member"),
        )

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("welcome") and shows(message, self.assignment.token, "head"):
            self._welcome = True
        if not self._welcome:
            return
        if "start" in message:
            self.workers = [int(number) for number in message["workers"]]
            self.master_port = int(message["start"])
        if "stop" in message and self.trouble is None:
            self.trouble = str(message["stop"])
        if "answered" in message:
            now, asked = time.time(), float(message["asked"])
            if 0 <= now - asked < self._best_s:  # the quickest answer bounds the error best
                self._best_s = now - asked
                self.clock_offset_s = float(message["answered"]) - (asked + now) / 2
