"""The agents of a run meet on the network of its gradients, and watch each other on it.

All connect to the agent of node 0, and both sides prove that they know the run's token: see
`door.py`. When all have connected, node 0 finds a port for torch and tells everyone to start. From
then on each sends a sign of life every second. A closed connection at once, and silence after
`SILENT_S`, means that a node is lost; the agent that notices it makes all others stop. No agent
leaves before all have recorded how they ended, since the run's leader may end the slower ones.
"""

import time
from collections.abc import Iterator
from typing import Any

from launch.agent.membership.door import Door, Link, listen, part
from launch.nodes.channel import Heartbeat
from launch.nodes.this_machine import among, free_port, is_free
from launch.spec import Assignment
from muster.errors import MusterError

TELL_S = 10.0  # after this time of waiting, the missing nodes are reported


class Peers:
    """What coordinator and clients have in common.

    `master_port` and `workers` are known once all have met; `trouble` says why the run cannot
    continue.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.master_port: int | None = None
        self.workers: list[int] = []  # of each agent, once all have met
        self.trouble: str | None = None
        self.own_address = assignment.coordinator_address
        self.clock_offset_s = 0.0  # added to this node's clock, gives the coordinator's
        self.heartbeat = Heartbeat()
        self._began = time.monotonic()
        self.waiting: str | None = None  # for which nodes, once that has taken a while

    @property
    def ranks(self) -> list[int]:
        """The ranks of this agent's workers."""
        index = self.assignment.index
        first = sum(self.workers[:index])
        return list(range(first, first + self.workers[index])) if self.workers else []

    def tick(self) -> None:
        """Receive, and send what is due; must be called many times a second."""
        raise NotImplementedError

    def done(self) -> None:
        """Tell the others that this node has done its part and recorded how it ended."""
        self._tell(done=True)

    def fail(self, reason: str) -> None:
        """Make all others stop, since this node cannot continue."""
        self._tell(failed=reason)

    def settled(self) -> bool:
        """Whether this agent, which is done, may leave."""
        raise NotImplementedError

    def close(self) -> None:
        self.heartbeat.stop()
        part(list(self._links()))

    def _links(self) -> Iterator[Link]:
        raise NotImplementedError

    def _waited_s(self) -> float:
        return time.monotonic() - self._began

    def _tell(self, **message: Any) -> None:
        for link in self._links():
            link.channel.send(**message)


class Coordinator(Peers):
    """The agent of node 0: all others connect to it, and it starts and stops them.

    Raises:
        MusterError: on creation; node 0 cannot listen at its address.
    """

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._door = _door(assignment)
        self.port: int = self._door.port
        self._let_go = False  # whether all know that they may leave
        self._clients: dict[int, Link] = {}

    def tick(self) -> None:
        for link, who in self._door.admitted():
            self._welcome(link, who.index)
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
        self._door.close()
        super().close()

    def _lose(self, reason: str) -> None:
        if self.trouble is None:
            self.trouble = reason
            self._tell(stop=reason)

    def _links(self) -> Iterator[Link]:
        yield from [*self._clients.values()]

    def _welcome(self, link: Link, index: int) -> None:
        if index in self._clients or not 0 < index < self.assignment.count:
            self._lose(
                f"two agents have number {index}: {link.place} and "
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
        if "failed" in message:
            link.is_leaving = True
            self._lose(str(message["failed"]))

    def _gather(self) -> None:
        missing = set(range(1, self.assignment.count)) - set(self._clients)
        if missing:
            names = ", ".join(f"node {index}" for index in sorted(missing))
            if self._waited_s() > self.assignment.spec.join_s:
                self._lose(
                    f"after {self.assignment.spec.join_s:.0f} s still missing: {names} of "
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
        self._door.close()  # all agents have connected


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
