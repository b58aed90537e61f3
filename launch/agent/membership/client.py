"""The agent of a node other than 0: it connects to node 0, and starts and stops on its order.

The agent of a Slurm job also connects through its leader's door. Its assignment, which comes
through that connection, has a proof of its own and none of the user's secrets. Those are in a file
that only their owner may read.
"""

import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from launch.agent.membership.coordinator import Peers
from launch.agent.membership.door import Knock, Link, Who, proof, shows
from launch.nodes.channel import BEAT_S, Channel
from launch.spec import Assignment
from muster.errors import MusterError
from muster.run_files import SECRETS
from muster.writing import read_json

CONNECT_S = 1.0
# Of the leader's door.
ENTER_S, WELCOME_S, LOOK_S = 10.0, 30.0, 0.02


class CoordinatorClient(Peers):
    """An agent that connects to the coordinator."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self._knock: Knock | None = None
        self._may_leave = False
        self._port = assignment.coordinator_ports[0]  # received from the coordinator
        self._best_s = float("inf")
        self._beaten = 0.0

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
            if link.channel.ended:
                self._knock = None
                link.drop()
            return
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            link.channel.send(asked=time.time())
        if trouble := link.trouble():
            self.trouble = self.trouble or trouble

    def settled(self) -> bool:
        return self._may_leave or all(link.is_lost() for link in self._links())

    def _links(self) -> Iterator[Link]:
        if self._knock is not None:
            yield self._knock.link

    def _give_up(self) -> None:
        self.trouble = self.trouble or (
            f"{self.assignment.name} could not reach node 0 at "
            f"{self.assignment.coordinator_address} (port {self._port}) for "
            f"{self.assignment.spec.join_s:.0f} s; is that its address on this network, and is no "
            "firewall between?"
        )

    def _connect(self) -> None:
        assignment, own = self.assignment, self.assignment.address
        where = (assignment.coordinator_address, self._port)
        try:
            link = Link(socket.create_connection(where, CONNECT_S, (own, 0) if own else None))
        except OSError:
            return
        link.name, self.own_address = "node 0", link.own_address
        who = Who(assignment.index, assignment.name, assignment.workers)
        self._knock = Knock(link, self._port, assignment.token, who)

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
            if 0 <= now - asked < self._best_s:  # the quickest answer has the smallest error bound
                self._best_s = now - asked
                self.clock_offset_s = float(message["answered"]) - (asked + now) / 2


def enter(address: str, port: int, token: str, who: Who) -> Channel:
    """Enter by the door at `address`; return the channel to its owner.

    Raises:
        MusterError: nobody listens, or nobody who knows the token.
    """
    place = f"{who.name} could not reach its leader at {address}, port {port}"
    try:
        link = Link(socket.create_connection((address, port), ENTER_S))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(f"{place} ({why}); is a firewall between?") from None
    knock = Knock(link, port, token, who)
    while not knock.is_in and not link.channel.ended and link.age_s < WELCOME_S:
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
        raise MusterError(f"{place}: the leader closed the connection; see the leader's output")
    return link.keep()


def sealed(assignment: Assignment, token: str) -> dict[str, Any]:
    """The message with an agent's assignment, to be sent over a network."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    return {"assignment": plain, "shown": proof(token, "assignment", _text(plain))}


def unsealed(message: Mapping[str, Any], token: str, index: int) -> Assignment:
    """The assignment in a message, for the agent of this index.

    Raises:
        MusterError: its sender does not know the token, or it is for another agent.
    """
    plain = message["assignment"]
    if not shows(dict(message), token, "assignment", _text(plain)) or plain["index"] != index:
        raise MusterError("what this agent was told to do is not from its leader")
    assignment = Assignment.from_json(plain)
    secrets = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=secrets or {}))


def _text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)
