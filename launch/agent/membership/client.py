"""The agent of a node other than 0: it finds node 0, and starts and stops when told."""

import socket
import time
from collections.abc import Iterator
from typing import Any

from launch.agent.membership.door import Knock, Who
from launch.agent.membership.peers import Link, Peers
from launch.spec import Assignment

CONNECT_S = 1.0
# Whoever listens at a port that may be the coordinator's has so long to show that it is.
ANSWER_S = 3.0


class CoordinatorClient(Peers):
    """An agent that connects to the coordinator."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._knock: Knock | None = None
        self._may_leave = False
        self._candidates = list(assignment.coordinator_ports)
        self._best_s = float("inf")

    def tick(self) -> None:
        knock = self._knock
        if (knock is None or not knock.is_in) and self._waited_s() > self.assignment.spec.join_s:
            self._give_up()
        elif knock is None:
            self._connect()
        else:
            self._hear(knock)

    def _hear(self, knock: Knock) -> None:
        link = knock.link
        for message in link.channel.receive():
            if was_in := knock.is_in:
                self._take(link, message)
            else:
                knock.take(message)
            if knock.is_in and not was_in:
                self.heartbeat.add(link.channel)
        if not knock.is_in:
            # A coordinator that is held up may take its time; another's port will never answer.
            if link.channel.ended or (not knock.is_known and link.age_s > ANSWER_S):
                self._knock = None
                link.drop()
            return
        if self._beat_is_due():
            link.channel.send(asked=time.time())
        if trouble := link.trouble():
            self.trouble = self.trouble or trouble

    def settled(self) -> bool:
        return self._may_leave or all(link.is_lost() for link in self._links())

    def _links(self) -> Iterator[Link]:
        if self._knock is not None:
            yield self._knock.link

    def _give_up(self) -> None:
        address, ports = self.assignment.coordinator_address, self.assignment.coordinator_ports
        self.trouble = self.trouble or (
            f"{self.assignment.name} could not reach node 0 at {address} (port "
            f"{', '.join(map(str, ports))}) for {self.assignment.spec.join_s:.0f} s; is that its "
            "address on this network, and is no firewall between?"
        )

    def _connect(self) -> None:
        port = self._candidates.pop(0)
        self._candidates.append(port)
        assignment, own = self.assignment, self.assignment.address
        where = (assignment.coordinator_address, port)
        try:
            link = Link(socket.create_connection(where, CONNECT_S, (own, 0) if own else None))
        except OSError:
            return
        link.name, self.own_address = "node 0", link.own_address
        who = Who(assignment.index, assignment.name, assignment.workers)
        self._knock = Knock(link, port, assignment.token, who)

    def _take(self, link: Link, message: dict[str, Any]) -> None:
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
