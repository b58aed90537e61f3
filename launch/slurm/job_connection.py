"""The connections between the leader of a run in a Slurm job and the agents of the job's nodes.

Both sides prove that they know the secret of the job step:

    agent -> leader    nonce
    leader -> agent    nonce, proof: of the secret over both nonces and the leader's port
    agent -> leader    task: its index, name, workers and address; proof: over this, too
    leader -> agent    welcome

A proof is useless on another connection, or through another port. Until the other side has proved
itself, nothing that it sends ends more than its own connection. After its proof a message of a
wrong form is a failure of that agent.

The assignment of an agent has a proof of its own. The user's secrets are not in it: they are in a
file that only the user may read.
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

PROOF_BYTES = 4_096  # so much a connection may send until it is proven
MAX_NAME_CHARACTERS = 255
MAX_WORKERS = 4_096  # of one node
MOST_UNPROVEN = 128  # connections without proof at a time, since each is an open file
ACCEPTED_AT_ONCE = 256  # connections


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
        self.peer_nonce: str | None = None  # set when it is received

    def mark_proven(self) -> None:
        """Call this when the other side has proved that it knows the secret."""
        self.channel.allowance_bytes = None


@dataclass(frozen=True)
class SlurmTask:
    """A task of the step of srun: an agent, as it describes itself."""

    index: int
    name: str
    workers: int
    address: str = ""  # where the other agents connect to it

    @classmethod
    def from_text(cls, text: str) -> "SlurmTask":
        """The task in an agent's description of itself.

        Raises:
            ValueError: `text` is not such a description.
        """
        try:
            task = cls(**json.loads(text))
            if [type(value) for value in asdict(task).values()] != [int, str, int, str]:
                raise TypeError
            if not (task.name.isprintable() and 0 < len(task.name) <= MAX_NAME_CHARACTERS):
                raise ValueError
            if task.index < 0 or not 0 <= task.workers <= MAX_WORKERS:
                raise ValueError
            if task.address:
                ipaddress.ip_address(task.address)
        except (RecursionError, TypeError, ValueError):
            raise ValueError(f"it says {text[:200]!a} of itself") from None
        return task


class AgentListener:
    """The port of the leader, which accepts only agents that prove to know the secret.

    It is the first free one of `ports`, at all addresses of this machine.

    Raises:
        OSError: on creation; none of `ports` is free.
    """

    def __init__(self, ports: Sequence[int], token: str) -> None:
        self._server = _server(ports)
        self._token = token
        self.port: int = self._server.getsockname()[1]
        self.unproven: list[JobConnection] = []

    def agents(self) -> Iterator[tuple[JobConnection, SlurmTask]]:
        """The agents that have proved since the last call that they know the secret.

        Raises:
            MusterError: an agent's description of itself has a wrong form.
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
            connection.mark_proven()
            try:
                task = SlurmTask.from_text(description)
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

    def _proven_description(self, connection: JobConnection) -> str | None:
        """An agent's description of itself; None until it has proved that it knows the secret.

        Raises:
            Exception: of any kind; the other side is no agent of this run.
        """
        channel = connection.channel
        for message in channel.receive():
            if connection.peer_nonce is None:
                connection.peer_nonce = _text_in(message, "nonce")
                values = self.port, connection.peer_nonce, connection.own_nonce
                own = proof(self._token, "leader", *values)
                channel.send(nonce=connection.own_nonce, proof=own)
                continue
            description = _text_in(message, "task")
            values = self.port, connection.peer_nonce, connection.own_nonce
            # if this process was blocked, the agent may have given up and connected again
            if channel.ended or not has_proof(message, self._token, "agent", *values, description):
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
    """A server at all addresses, since only Slurm knows at which of them srun is reached."""
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
    leader: tuple[str, int], token: str, task: SlurmTask, *, wait_s: float
) -> JobConnection:
    """Connect this agent to `leader`, an address and a port.

    Raises:
        MusterError: nobody answers there within `wait_s`, or who answers does not know the secret.
    """
    place = f"{task.name} could not reach its leader at {leader[0]}, port {leader[1]}"
    try:
        connection = JobConnection(socket.create_connection(leader, wait_s))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MusterError(f"{place} ({reason}); is a firewall between?") from None
    channel = connection.channel
    channel.send(nonce=connection.own_nonce)
    patience_s = LEADER_PROVES_ITSELF_S
    answer = channel.first("nonce", patience_s=patience_s, within_s=patience_s) or {}
    values = leader[1], connection.own_nonce, _text_in(answer, "nonce")
    if not has_proof(answer, token, "leader", *values):
        channel.close()
        raise MusterError(
            f"{place}: another program listens there; start the run again, or choose --port-range"
        )
    connection.mark_proven()
    description = json.dumps(asdict(task))
    channel.send(task=description, proof=proof(token, "agent", *values, description))
    if channel.first("welcome") is None:
        channel.close()
        raise MusterError(f"{place}: the leader closed the connection; see the leader's output")
    return connection


def proof(token: str, role: str, *values: str | int) -> str:
    """The proof that who sends `values`, a nonce of each side among them, knows the secret."""
    text = json.dumps([role, *values])
    return hmac.new(token.encode(), text.encode(), "sha256").hexdigest()


def has_proof(message: Mapping[str, Any], token: str, role: str, *values: str | int) -> bool:
    """Whether a message has the proof of `values`."""
    given = _text_in(message, "proof")
    return given.isascii() and hmac.compare_digest(given, proof(token, role, *values))


def _text_in(message: Mapping[str, Any], name: str) -> str:
    """The text with this name in a message; empty if there is none, or another type."""
    value = message.get(name)
    return value if isinstance(value, str) else ""


def signed(assignment: Assignment, token: str, task: int) -> dict[str, Any]:
    """The message with the assignment of this task's agent, and a proof that the leader sent it."""
    plain = replace(assignment, spec=replace(assignment.spec, secrets={})).to_json()
    return {"assignment": plain, "proof": proof(token, "assignment", task, _json_text(plain))}


def verified(message: Mapping[str, Any], token: str, task: int) -> Assignment:
    """The assignment in a message, for the agent of this task.

    Raises:
        MusterError: its sender does not know the secret, or the assignment is for another agent.
    """
    plain = message["assignment"]
    try:
        is_genuine = has_proof(message, token, "assignment", task, _json_text(plain))
    except RecursionError:  # no assignment is nested so deeply
        is_genuine = False
    if not is_genuine:
        raise MusterError(
            "the assignment of this agent is not from its leader; start the run again"
        )
    assignment = Assignment.from_json(plain)
    user_secrets = read_json(SECRETS.path(assignment.spec.run_dir))
    return replace(assignment, spec=replace(assignment.spec, secrets=user_secrets or {}))


def _json_text(plain: Mapping[str, Any]) -> str:
    return json.dumps(plain, sort_keys=True)
