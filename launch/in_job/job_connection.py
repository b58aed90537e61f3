"""The connections between the leader of a run in a scheduler's job and the agents of its nodes.

Both sides prove that they know a secret, which is in a file of the run folder:

    agent -> leader    Nonce
    leader -> agent    Nonce, with a proof: of the secret over both nonces and the leader's port
    agent -> leader    Introduction: an `AgentTask`, with a proof that also covers it
    leader -> agent    Welcome

A proof is useless on another connection, or through another port. Until the other side has proved
that it knows the secret, nothing that it sends can end more than its own connection. After its
proof, an invalid message is a failure of that agent.

The assignment of an agent has a proof of its own. It does not contain the user's secrets, which are
in a file that only the user may read.
"""

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from launch.deadlines import (
    AGENT_PROVES_ITSELF_S,
    LEADER_CLOSES_UNPROVEN_AFTER_S,
    LEADER_PROVES_ITSELF_S,
)
from launch.nodes.channel import Channel, running_s
from launch.nodes.messages import (
    REFUSED,
    Assign,
    Decode,
    HostName,
    Introduction,
    Nonce,
    Value,
    Welcome,
    from_agent,
    from_leader,
    from_stranger,
    quoted,
)
from launch.spec import Assignment
from muster.errors import MusterError
from muster.run_files import SECRETS
from muster.writing import read_json

PROOF_BYTES = 4_096  # the most that a connection may send before its proof
MOST_UNPROVEN = 128  # connections without proof at a time, since each is an open file
ACCEPTED_AT_ONCE = 256  # connections


class JobConnection:
    """One connection between the leader and an agent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # an IPv4 address has this prefix on a port that is also for IPv6
        self.peer_address: str = connection.getpeername()[0].removeprefix("::ffff:")
        self.own_address: str = connection.getsockname()[0].removeprefix("::ffff:")
        self.began_s = running_s()
        descriptor = connection.detach()
        self.channel = Channel(descriptor, descriptor, from_stranger)
        self.channel.allowance_bytes = PROOF_BYTES
        self.own_nonce = secrets.token_hex(16)
        self.peer_nonce: str | None = None  # set when it is received

    def mark_proven(self, decode: Decode) -> None:
        """Lift the limits, once the other side has proved that it knows the secret."""
        self.channel.allowance_bytes = None
        self.channel.decode = decode


class AgentTask(Value, frozen=True):
    """An agent that a scheduler has started, as it describes itself."""

    index: Annotated[int, Meta(ge=0, lt=1 << 20)]
    name: HostName
    workers: Annotated[int, Meta(ge=0, le=4_096)]
    # in --network, else on the way to the leader; "" until it is connected
    address: Annotated[str, Meta(max_length=64)] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.address:
            ipaddress.ip_address(self.address)


class AgentListener:
    """The leader's port, which accepts only agents that prove that they know the secret.

    It is the first of `ports` that is free, on all addresses of this machine.

    Raises:
        OSError: on creation; none of `ports` is free.
    """

    def __init__(self, ports: Sequence[int], token: str) -> None:
        self._server = _server(ports)
        self._token = token
        self.port: int = self._server.getsockname()[1]
        self.unproven: list[JobConnection] = []

    def agents(self) -> Iterator[tuple[JobConnection, AgentTask]]:
        """The agents that have proved since the last call that they know the secret.

        Raises:
            MusterError: an agent's description of itself is not an `AgentTask`.
        """
        self._accept()
        for connection in list(self.unproven):
            try:
                description = self._proven_description(connection)
            except Exception:  # noqa: BLE001  whatever was sent ends this connection alone
                self._drop(connection)
                continue
            if description is None:
                continue
            self.unproven.remove(connection)
            connection.mark_proven(from_agent)
            try:
                task = msgspec.json.decode(description, type=AgentTask)
            except REFUSED:
                connection.channel.close()
                told = quoted(description.decode(errors="replace"))
                raise MusterError(
                    f"unexpected agent at {connection.peer_address}: it reports {told}"
                ) from None
            connection.channel.send(Welcome())
            yield connection, task

    def close(self) -> None:
        self._server.close()
        for connection in self.unproven:
            connection.channel.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if len(self.unproven) >= MOST_UNPROVEN and not self._make_room():
                return  # further connections wait in the kernel's queue
            try:
                accepted, _ = self._server.accept()
            except OSError:  # no connection to accept, or this process has too many files open
                return
            try:
                self.unproven.append(JobConnection(accepted))
            except OSError:  # the other side has closed it already
                accepted.close()

    def _make_room(self) -> bool:
        """Close the oldest connection without proof; false if it must get more time."""
        oldest = self.unproven[0]
        if running_s() - oldest.began_s < LEADER_CLOSES_UNPROVEN_AFTER_S:
            return False
        self._drop(oldest)
        return True

    def _proven_description(self, connection: JobConnection) -> bytes | None:
        """An agent's description of itself; None until it has proved that it knows the secret.

        Raises:
            Exception: of any kind; the other side is not an agent of this run.
        """
        channel = connection.channel
        for message in channel.receive():
            if connection.peer_nonce is None:
                connection.peer_nonce = message.nonce
                values = self.port, message.nonce, connection.own_nonce
                own = proof(self._token, "leader", *values)
                channel.send(Nonce(connection.own_nonce, own))
                continue
            description: bytes = message.task
            values = self.port, connection.peer_nonce, connection.own_nonce
            # if this process was blocked, the agent may have given up and connected again
            if channel.ended or not is_proof(
                message.proof, self._token, "agent", *values, description
            ):
                self._drop(connection)
                return None
            return description
        if channel.ended or running_s() - connection.began_s > AGENT_PROVES_ITSELF_S:
            self._drop(connection)
        return None

    def _drop(self, connection: JobConnection) -> None:
        self.unproven.remove(connection)
        connection.channel.close()


def _server(ports: Sequence[int]) -> socket.socket:
    """A server on all addresses, since only the scheduler knows which of them agents will use."""
    last_error = OSError("no port given")
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in ports:
        try:
            server = socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError as error:
            last_error = error
            continue
        server.setblocking(False)
        return server
    raise last_error


def connect(
    leader: tuple[str, int], token: str, task: AgentTask, *, wait_s: float
) -> JobConnection:
    """Connect this agent to `leader`, an address and a port.

    Raises:
        MusterError: nobody answers there within `wait_s`, or the program that answers does not know
            the secret.
    """
    place = f"{task.name} could not reach its leader at {leader[0]}, port {leader[1]}"
    try:
        connection = JobConnection(socket.create_connection(leader, wait_s))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MusterError(f"{place} ({reason}); is there a firewall in between?") from None
    channel = connection.channel
    channel.send(Nonce(connection.own_nonce))
    patience_s = LEADER_PROVES_ITSELF_S
    answer = channel.first(Nonce, patience_s=patience_s, within_s=patience_s) or Nonce("")
    values = leader[1], connection.own_nonce, answer.nonce
    if not is_proof(answer.proof, token, "leader", *values):
        channel.close()
        raise MusterError(
            f"{place}: another program is listening there"
            "\ntip: start the run again, or choose --port-range"
        )
    connection.mark_proven(from_leader)
    known = task if task.address else msgspec.structs.replace(task, address=connection.own_address)
    description = msgspec.json.encode(known)
    channel.send(Introduction(description, proof(token, "agent", *values, description)))
    if channel.first(Welcome) is None:
        channel.close()
        raise MusterError(
            f"{place}: the leader closed the connection\ntip: see the leader's output"
        )
    return connection


def proof(token: str, role: str, *values: str | int | bytes) -> str:
    """The proof that the sender of `values` knows the secret.

    When two sides connect, `values` include a nonce from each side.
    """
    text = msgspec.json.encode([role, *values])
    return hmac.new(token.encode(), text, "sha256").hexdigest()


def is_proof(given: str, token: str, role: str, *values: str | int | bytes) -> bool:
    """Whether `given` is the proof for `values`."""
    return given.isascii() and hmac.compare_digest(given, proof(token, role, *values))


def signed(assignment: Assignment, token: str, task: int) -> Assign:
    """The message with the assignment of this task's agent, and a proof that the leader sent it."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    data = json.dumps(plain).encode()
    return Assign(data, proof(token, "assignment", task, data))


def verified(message: Assign, token: str, task: int) -> Assignment:
    """The assignment in a message, for the agent of this task.

    Raises:
        MusterError: its sender does not know the secret, or the assignment is for another agent.
    """
    if not is_proof(message.proof, token, "assignment", task, message.assignment):
        raise MusterError(
            "this agent's assignment does not come from its leader\ntip: start the run again"
        )
    assignment = Assignment.from_json(json.loads(message.assignment))
    user_secrets = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=user_secrets or {}))
