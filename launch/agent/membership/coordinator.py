"""The agents of a run meet on the network that its gradients take, and watch each other there.

All connect to the agent of node 0, and both sides show that they know the run's token: see
`door.py`. When all are there, node 0 finds a port for torch and has everyone start. From then on
each says every second that it lives; a closed connection means at once, and silence after
`SILENT_S`, that a node is lost. Whoever notices tells the leader of the run, which has all stop.
"""

from collections.abc import Callable
from contextlib import suppress

from launch.agent.membership.door import Door, Link, Who, enter, listen, loss_of
from launch.nodes.channel import Heartbeat
from launch.nodes.running_time import running_s
from launch.nodes.this_machine import among, free_port, is_free
from launch.spec import Assignment
from muster.errors import MusterError

TELL_S = 10.0  # after this time of waiting, the missing nodes are reported
WAIT_S = 1.0  # for node 0, at a time


class Peers:
    """The other agents, as one sees them: that of node 0 sees all, each of the others that one.

    `master_port` is known once all have met. `trouble` says why it cannot go on, and `lost` which
    agent is gone, if it is for that. `say` tells the leader where node 0 listens, and for which
    nodes it waits, once that has taken a while.

    Raises:
        MusterError: on creation; node 0 cannot listen at the address it should have.
    """

    def __init__(self, assignment: Assignment, say: Callable[..., None]) -> None:
        self.assignment, self._say = assignment, say
        self.master_port: int | None = None
        self.trouble: str | None = None
        self.lost: int | None = None
        self.own_address = assignment.coordinator_address
        self._announced: str | None = None
        self.door = _door(assignment) if assignment.index == 0 else None
        if self.door is not None:
            say(listening=self.door.port)
        self._heartbeat = Heartbeat()
        self._began = running_s()
        self._links: dict[int, Link] = {}  # by the index of the agent at the other end

    def tick(self) -> None:
        """Receive, and send what is due; must be called many times a second."""
        if self.master_port is None and self.trouble is None:
            self._join() if self.door is None else self._gather(self.door)
        for index, link in self._links.items():
            for message in link.channel.receive():
                if "start" in message:
                    self._begin(link, message["start"])
            if self.trouble is None and (why := loss_of(link.channel, link.place)):
                self.trouble, self.lost = why, index

    def close(self) -> None:
        self._heartbeat.stop()
        if self.door is not None:
            self.door.close()
        for link in self._links.values():
            link.channel.close()

    def _join(self) -> None:
        """Connect to node 0, and wait until it has all start."""
        if self._links:
            return
        assignment = self.assignment
        where = (assignment.coordinator_address, assignment.coordinator_ports[0])
        if self._waited_s() > assignment.spec.join_s:
            self.trouble = (
                f"{assignment.name} could not reach node 0 at {where[0]} (port {where[1]}) for "
                f"{assignment.spec.join_s:.0f} s; is that its address on this network, and is no "
                "firewall between?"
            )
        who = Who(assignment.index, assignment.name, len(assignment.ranks))
        with suppress(MusterError):  # it is tried again
            link = enter(where, assignment.token, who, wait_s=WAIT_S, own=assignment.address)
            link.name, self.own_address = "node 0", link.own_address
            self._add(0, link)

    def _begin(self, link: Link, port: object) -> None:
        """Start with the port that node 0 has found."""
        if type(port) is int and 0 < port < 65_536:
            self.master_port = port
        elif self.trouble is None:
            self.trouble = f"{link.place} says an odd port for torch: {str(port)[:200]!a}"

    def _gather(self, door: Door) -> None:
        """Let all others in, and then have them start."""
        try:
            for link, who in door.admitted():
                if not 0 < who.index < self.assignment.count:
                    link.channel.close()
                    raise MusterError(f"an agent on {link.place} says it is node {who.index}")
                self._add(who.index, link)
        except MusterError as error:
            self.trouble = str(error)
            return
        missing = set(range(1, self.assignment.count)) - set(self._links)
        if missing:
            names = ", ".join(f"node {index}" for index in sorted(missing))
            if self._waited_s() > self.assignment.spec.join_s:
                self.trouble = (
                    f"after {self.assignment.spec.join_s:.0f} s still missing: {names} of "
                    f"{self.assignment.count}; can it reach "
                    f"{self.assignment.coordinator_address}, and is no firewall between?"
                )
            if self._waited_s() > TELL_S and names != self._announced:
                self._announced = names
                self._say(waiting=f"waiting for {names}")
            return
        try:
            self.master_port = _master_port(self.assignment)
        except MusterError as error:
            self.trouble = str(error)
            return
        for link in self._links.values():
            link.channel.send(start=self.master_port)
        door.close()  # all agents have connected; before, its port would count as a free one

    def _add(self, index: int, link: Link) -> None:
        self._links[index] = link
        self._heartbeat.add(link.channel)

    def _waited_s(self) -> float:
        return running_s() - self._began


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
