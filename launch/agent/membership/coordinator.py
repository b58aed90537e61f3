"""The agents of a run meet on the network that its gradients take, and watch each other there.

All connect to the agent of node 0, and both sides show that they know the run's token: see
`door.py`. When all are there, node 0 finds a port for torch and has everyone start. From then on
each says every second that it lives; a closed connection means at once, and silence after
`SILENT_S`, that a node is lost. Whoever notices tells the leader of the run, which has all stop.
"""

import time
from typing import Any

from launch.agent.membership.door import Door, Link, listen
from launch.nodes.channel import Heartbeat
from launch.nodes.this_machine import among, free_port, is_free
from launch.spec import Assignment
from muster.errors import MusterError

TELL_S = 10.0  # after which whoever waits says for whom


class Peers:
    """What coordinator and clients have in common.

    `master_port` is known once all have met. `trouble` says why it cannot go on, and `lost` which
    agent is gone, if it is for that.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.master_port: int | None = None
        self.trouble: str | None = None
        self.lost: int | None = None
        self.own_address = assignment.coordinator_address
        self.waiting: str | None = None  # for whom, once that has taken a while
        self._heartbeat, self._began = Heartbeat(), time.monotonic()
        self._links: dict[int, Link] = {}  # by the index of the agent at the other end

    def tick(self) -> None:
        """Take and send what is due; to be called many times a second."""
        self._meet()
        for index, link in self._links.items():
            for message in link.channel.receive():
                self._take(link, message)
            if self.trouble is None and (why := link.loss()):
                self.trouble, self.lost = why, index

    def close(self) -> None:
        self._heartbeat.stop()
        for link in self._links.values():
            link.drop()

    def _meet(self) -> None:
        raise NotImplementedError

    def _take(self, link: Link, message: dict[str, Any]) -> None:
        """What the other side says, but that it lives."""

    def _add(self, index: int, link: Link) -> None:
        self._links[index] = link
        self._heartbeat.add(link.channel)

    def _waited_s(self) -> float:
        return time.monotonic() - self._began


class Coordinator(Peers):
    """The agent of node 0: all others connect to it, and it has all of them start.

    Raises:
        MusterError: on creation; node 0 cannot listen at the address it should have.
    """

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._door = _door(assignment)
        self.port: int = self._door.port

    def close(self) -> None:
        self._door.close()
        super().close()

    def _meet(self) -> None:
        if self.master_port is not None or self.trouble is not None:
            return
        for link, who in self._door.admitted():
            self._add(who.index, link)
        missing = set(range(1, self.assignment.count)) - set(self._links)
        if missing:
            names = ", ".join(f"node {index}" for index in sorted(missing))
            if self._waited_s() > self.assignment.spec.join_s:
                self.trouble = (
                    f"after {self.assignment.spec.join_s:.0f} s still missing: {names} of "
                    f"{self.assignment.count}; can it reach "
                    f"{self.assignment.coordinator_address}, and is no firewall between?"
                )
            self.waiting = f"waiting for {names}" if self._waited_s() > TELL_S else None
            return
        self._door.close()  # nobody else is expected
        try:
            self.master_port = _master_port(self.assignment)
        except MusterError as error:
            self.trouble = str(error)
            return
        for link in self._links.values():
            link.channel.send(start=self.master_port)


def _door(assignment: Assignment) -> Door:
    try:
        server = listen(assignment.coordinator_address, assignment.coordinator_ports)
    except OSError as error:
        tried = assignment.coordinator_ports
        ports = f"{tried[0]} to {tried[-1]}" if len(tried) > 1 else "".join(map(str, tried))
        raise MusterError(
            f"{assignment.name} cannot listen at {assignment.coordinator_address}, port {ports} "
            f"({(error.strerror or str(error)).lower()}); "
            "is that its address on the network between the nodes?"
        ) from None
    return Door(server, assignment.token)


def _master_port(assignment: Assignment) -> int:
    if assignment.master_port is None:
        return free_port(ports=among(assignment.spec.ports))
    if not is_free(assignment.master_port):
        raise MusterError(
            f"--master-port {assignment.master_port} is in use on {assignment.name}; choose "
            "another, or leave it out: a free one is found"
        )
    return assignment.master_port
