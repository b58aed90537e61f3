"""The connections between the leader of a run in a Slurm job and the agents of the job's nodes.

Both sides prove that they know the secret of the job step:

    agent -> leader    nonce
    leader -> agent    nonce, proof: of the secret over both nonces and the leader's port
    agent -> leader    task: its index, name, workers and address; proof: over this, too
    leader -> agent    welcome

A proof is of no use on another connection, or through another port. Before it, whatever the other
side sends, only its own connection ends. After it an odd form is that agent's failure.

What the agent is to run has a proof of its own, and none of the user's secrets: those are in a file
that only their owner may read.
"""

import hmac
import ipaddress
import json
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from launch.deadlines import (
    AGENT_PROVES_ITSELF_S,
    LEADER_CLOSES_UNPROVEN_AFTER_S,
    LEADER_PROVES_ITSELF_S,
)
from launch.nodes.channel import Channel, running_s
from launch.spec import Assignment
from muster.errors import MusterError
from muster.run_files import SECRETS
from muster.writing import read_json

# That a new connection has for its proof.
PROOF_BYTES = 4_096
NAME_CHARACTERS, WORKERS = 255, 4_096  # at most, of one node
# How many connections may wait for their proof at a time, since each is an open file.
MOST_UNPROVEN = 128
ACCEPTS = 256  # connections accepted at a time


class JobConnection:
    """One connection between the leader and an agent."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_address: str = connection.getpeername()[0]
        self.own_address: str = connection.getsockname()[0]
        self.began_s = running_s()
        descriptor = connection.detach()
        self.channel = Channel(descriptor, descriptor)
        self.channel.allowance_bytes = PROOF_BYTES
        self.own_nonce = secrets.token_hex(16)
        self.peer_nonce: str | None = None  # once it was received

    def is_proven(self) -> None:
        """Called when the other side has proved that it knows the secret."""
        self.channel.allowance_bytes = None


@dataclass(frozen=True)
class Task:
    """An agent, as it describes itself."""

    index: int
    name: str
    workers: int
    address: str = ""  # where the other agents connect to it

    @classmethod
    def from_text(cls, text: str) -> "Task":
        """An agent's description of itself.

        Raises:
            ValueError: it has no form of ours.
        """
        try:
            task = cls(**json.loads(text))
            if [type(value) for value in asdict(task).values()] != [int, str, int, str]:
                raise TypeError
            if not (task.name.isprintable() and 0 < len(task.name) <= NAME_CHARACTERS):
                raise ValueError
            if task.index < 0 or not 0 <= task.workers <= WORKERS:
                raise ValueError
            if task.address:
                ipaddress.ip_address(task.address)
        except (RecursionError, TypeError, ValueError):
            raise ValueError(f"it says {text[:200]!a} of itself") from None
        return task


class AgentListener:
    """The leader's port; only agents that prove to know the secret get through it.

    It is at all addresses of this machine, at the first free one of `ports`.

    Raises:
        OSError: on creation; none is free.
    """

    def __init__(self, ports: Sequence[int], token: str) -> None:
        self._server = _server(ports)
        self._token = token
        self.port: int = self._server.getsockname()[1]
        self.unproven: list[JobConnection] = []

    def agents(self) -> Iterator[tuple[JobConnection, Task]]:
        """The agents that have proved since the last call that they know the secret.

        Raises:
            MusterError: one of them describes itself in a form that is not ours.
        """
        self._accept()
        for connection in list(self.unproven):
            try:
                description = self._proven_description(connection)
            except Exception:  # noqa: BLE001  whatever somebody sends, it ends nothing else
                self._drop(connection)
                continue
            if description is None:
                continue
            self.unproven.remove(connection)
            connection.is_proven()
            try:
                task = Task.from_text(description)
            except ValueError as error:
                connection.channel.close()
                raise MusterError(f"odd agent at {connection.peer_address}: {error}") from None
            connection.channel.send(welcome=True)
            yield connection, task

    def close(self) -> None:
        self._server.close()
        for connection in self.unproven:
            connection.channel.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if len(self.unproven) >= MOST_UNPROVEN and not self._make_room():
                return  # others wait in the kernel's queue
            try:
                accepted, _ = self._server.accept()
            except OSError:  # no connection to accept, or this process has too many files open
                return
            try:
                self.unproven.append(JobConnection(accepted))
            except OSError:  # it has closed already
                accepted.close()

    def _make_room(self) -> bool:
        """Close the first connection without proof, once it has had time; false: none has."""
        oldest = self.unproven[0]
        if running_s() - oldest.began_s < LEADER_CLOSES_UNPROVEN_AFTER_S:
            return False
        self._drop(oldest)
        return True

    def _proven_description(self, connection: JobConnection) -> str | None:
        """What an agent says of itself, once it has proved that it knows the secret.

        Raises:
            Exception: of any kind; the other side is no agent of this run.
        """
        channel = connection.channel
        for message in channel.receive():
            if connection.peer_nonce is None:
                connection.peer_nonce = _text_of(message, "nonce")
                facts = self.port, connection.peer_nonce, connection.own_nonce
                own = proof(self._token, "leader", *facts)
                channel.send(nonce=connection.own_nonce, proof=own)
                continue
            description = _text_of(message, "task")
            facts = self.port, connection.peer_nonce, connection.own_nonce
            # if this process was blocked, an agent may have given up and connected again
            if channel.ended or not has_proof(message, self._token, "agent", *facts, description):
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
    """A server at all addresses, since only Slurm knows which one it uses."""
    last = OSError("no port given")
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    for port in ports:
        try:
            server = socket.create_server(
                ("", port), family=family, backlog=128, dualstack_ipv6=both
            )
        except OSError as error:
            last = error
            continue
        server.setblocking(False)
        return server
    raise last


def connect(leader: tuple[str, int], token: str, task: Task, *, wait_s: float) -> JobConnection:
    """Connect this agent to its leader, which is at this address and port.

    Raises:
        MusterError: nobody is there within `wait_s`, or none that knows the secret.
    """
    place = f"{task.name} could not reach its leader at {leader[0]}, port {leader[1]}"
    try:
        connection = JobConnection(socket.create_connection(leader, wait_s))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MusterError(f"{place} ({why}); is a firewall between?") from None
    channel = connection.channel
    channel.send(nonce=connection.own_nonce)
    patience_s = LEADER_PROVES_ITSELF_S
    answer = channel.first("nonce", patience_s=patience_s, within_s=patience_s) or {}
    facts = leader[1], connection.own_nonce, _text_of(answer, "nonce")
    if not has_proof(answer, token, "leader", *facts):
        channel.close()
        raise MusterError(
            f"{place}: another program listens there; start the run again, or choose --port-range"
        )
    connection.is_proven()
    description = json.dumps(asdict(task))
    channel.send(task=description, proof=proof(token, "agent", *facts, description))
    if channel.first("welcome") is None:
        channel.close()
        raise MusterError(f"{place}: the leader closed the connection; see the leader's output")
    return connection


def proof(token: str, role: str, *facts: str | int) -> str:
    """A proof of `facts`, with a nonce of each side, that needs the secret."""
    text = json.dumps([role, *facts])
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def has_proof(message: Mapping[str, Any], token: str, role: str, *facts: str | int) -> bool:
    """Whether a message has the proof of `facts`."""
    given = _text_of(message, "proof")
    return given.isascii() and hmac.compare_digest(given, proof(token, role, *facts))


def _text_of(message: Mapping[str, Any], name: str) -> str:
    """A text in a message of whoever has connected; empty where that is none."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def signed(assignment: Assignment, token: str, task: int) -> dict[str, Any]:
    """The message with the assignment of this task's agent, with a proof of who has sent it."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    return {"assignment": plain, "proof": proof(token, "assignment", task, _text(plain))}


def verified(message: Mapping[str, Any], token: str, task: int) -> Assignment:
    """The assignment in a message, for the agent of this task.

    Raises:
        MusterError: its sender does not know the secret, or it is for another agent.
    """
    plain = message["assignment"]
    try:
        is_own = has_proof(message, token, "assignment", task, _text(plain))
    except RecursionError:  # it is nested too deeply to be one
        is_own = False
    if not is_own:
        raise MusterError(
            "the assignment of this agent is not from its leader; start the run again"
        )
    assignment = Assignment.from_json(plain)
    own = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=own or {}))


def _text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)
