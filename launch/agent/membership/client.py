"""The agent of a node other than 0: it finds node 0, and starts and stops when told."""

import socket
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from launch.agent.membership.door import Who
from launch.agent.membership.peers import Link, Peers, shows
from launch.spec import Assignment

CONNECT_S = 1.0
# Whoever listens at a port that may be the coordinator's has so long to show that it is.
ANSWER_S = 3.0


class CoordinatorClient(Peers):
    """An agent that connects to the coordinator."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._link: Link | None = None
        self._port = 0
        self._is_coordinator = False  # the other side of the link has shown that it is
        self._welcome = False
        self._may_leave = False
        self._candidates = list(assignment.coordinator_ports)
        self._best_s = float("inf")

    def tick(self) -> None:
        if not self._welcome and self._waited_s() > self.assignment.spec.join_s:
            self._give_up()
            return
        if self._link is None:
            self._connect()
            return
        link = self._link
        for message in link.channel.receive():
            self._take(link, message)
        if not self._welcome:
            # A coordinator that is held up may take its time; another's port will never answer.
            if link.channel.ended or (not self._is_coordinator and link.age_s > ANSWER_S):
                self._link, self._is_coordinator = None, False
                link.drop()
            return
        if self._beat_is_due():
            link.channel.send(asked=time.time())
        if trouble := link.trouble():
            self.trouble = self.trouble or trouble

    def settled(self) -> bool:
        return self._may_leave or self._link is None or self._link.is_lost() is not None

    def _links(self) -> Iterator[Link]:
        if self._link is not None:
            yield self._link

    def _give_up(self) -> None:
        address, ports = self.assignment.coordinator_address, self.assignment.coordinator_ports
        self.trouble = self.trouble or (
            f"{self.assignment.name} could not reach node 0 at {address} (port "
            f"{', '.join(map(str, ports))}) for {self.assignment.spec.join_s:.0f} s; is that its "
            "address on this network, and is no firewall between?"
        )

    def _connect(self) -> None:
        self._port = self._candidates.pop(0)
        self._candidates.append(self._port)
        own = self.assignment.address
        try:
            connection = socket.create_connection(
                (self.assignment.coordinator_address, self._port),
                CONNECT_S,
                (own, 0) if own else None,
            )
            self._link = Link(connection)
        except OSError:
            return
        self._link.name = "node 0"
        self.own_address = self._link.own_address
        self._link.channel.send(nonce=self._link.own_nonce)

    def _introduce(self, link: Link, message: dict[str, Any]) -> None:
        """Show the token to one that has shown that it knows it."""
        token, nonce = self.assignment.token, str(message.get("nonce", ""))
        if not shows(message, token, "coordinator", self._port, link.own_nonce, nonce):
            link.channel.ended = True  # somebody else's port
            return
        self._is_coordinator = True
        link.trust()
        self.heartbeat.add(link.channel)
        own = Who(self.assignment.index, self.assignment.name, self.assignment.workers)
        shown = own.shown(token, self._port, link.own_nonce, nonce)
        link.channel.send(**asdict(own), shown=shown)

    def _take(self, link: Link, message: dict[str, Any]) -> None:
        if not self._is_coordinator:
            self._introduce(link, message)
            return
        if message.get("welcome"):
            self._welcome = True
        if "start" in message:
            self.workers = [int(number) for number in message["workers"]]
            self.master_port = int(message["start"])
        if "stop" in message and self.trouble is None:
            self.trouble = str(message["stop"])
        if message.get("go"):
            self._may_leave = link.is_leaving = True
        if "answered" in message:
            now, asked = time.time(), float(message["asked"])
            if 0 <= now - asked < self._best_s:  # the quickest answer bounds the error best
                self._best_s = now - asked
                self.clock_offset_s = float(message["answered"]) - (asked + now) / 2
