"""A job's leader and its agents recognize each other; nothing that a stranger sends ends them."""

import json
import socket
import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest
from msgspec.structs import replace

from launch.in_job import job_connection
from launch.in_job.job_connection import AgentListener, AgentTask, connect, proof, signed, verified
from launch.nodes.channel import MESSAGE_MARK
from launch.nodes.messages import Assign
from muster.errors import MusterError
from tests.launch.pretended import assignment
from tests.launch.submit import wait_until

HERE = "127.0.0.1"
TASK = AgentTask(1, "node1", 2)
HALF = "\ud800"  # half of a character; no encoder accepts it alone
DEEP = b"[" * 900 + b"]" * 900  # JSON is read to this depth, but repr and json.dumps give up


def line(kind: str, **message) -> bytes:
    return MESSAGE_MARK + json.dumps({"kind": kind, **message}).encode() + b"\n"


def introduction(description: bytes, shown: object) -> bytes:
    return line("introduction", task=b64encode(description).decode(), proof=shown)


@pytest.fixture
def leader():
    made = AgentListener([0], "secret")
    yield made
    made.close()


class Agent(threading.Thread):
    """An agent that connects in a thread, as a real one does in a process of its own."""

    def __init__(self, port: int, token: str = "secret") -> None:
        super().__init__()
        self._where, self._token = (HERE, port), token
        self.connection: job_connection.JobConnection | None = None
        self.refusal = ""
        self.start()

    def run(self) -> None:
        try:
            self.connection = connect(self._where, self._token, TASK, wait_s=60.0)
        except MusterError as error:
            self.refusal = str(error)


def come(leader: AgentListener, is_enough: Callable[[list], bool] = bool) -> list:
    """Collect the agents that connect until they are enough."""
    found: list = []

    def look() -> bool:
        found.extend(leader.agents())
        return is_enough(found)

    wait_until(look)
    return found


def welcomed(leader: AgentListener) -> None:
    """Let an agent connect, and check that it is accepted."""
    agent = Agent(leader.port)
    ((connection, task),) = come(leader)
    agent.join()
    assert task == replace(TASK, address=HERE) and agent.connection is not None, agent.refusal
    for end in (connection, agent.connection):
        end.channel.close()


def test_strangers_are_not_taken_for_agents_and_learn_nothing(leader):
    own = b'{"index": 1, "name": "node1", "workers": 2}'
    nonce = line("nonce", nonce="n")
    for hello in (
        [b"GET / HTTP/1.1\r\n\r\n"],
        [nonce, introduction(own, "guess")],
        [nonce, introduction(own, proof("other", "agent"))],
        [nonce, line("introduction", task=["no", "text"], proof=["no", "text"]), nonce],
        [nonce, nonce],
        [introduction(own, "guess"), nonce],
        [line("released"), nonce],
        [nonce, introduction(own, HALF)],
        [line("nonce", nonce=HALF), line("introduction", task=HALF, proof=HALF)],
        [nonce, introduction(own, None), introduction(own, 7)],
        [nonce, introduction(own, "é")],
        [nonce, MESSAGE_MARK + b'{"kind": "introduction", "task": ' + DEEP + b', "proof": ""}\n'],
        [MESSAGE_MARK + b'{"kind": "nonce", "nonce": ' + DEEP + b"}\n", introduction(own, "guess")],
        [MESSAGE_MARK + b"[" * 100_000 + b"\n"],
    ):
        with socket.create_connection((HERE, leader.port)) as stranger:
            stranger.settimeout(0.05)
            with suppress(OSError):
                for part in hello:
                    stranger.sendall(part)
                    for _ in range(5):
                        assert list(leader.agents()) == []
                    assert b"secret" not in stranger.recv(1000)
    welcomed(leader)


ODD = [
    ("[]", "it reports '[]'"),
    ("7", "it reports '7'"),
    ("{", "it reports '{'"),
    ("[" * 900 + "]" * 900, "it reports '"),
    ('{"index": 1}', "it reports '"),
    ('{"index": 1, "name": "node1", "workers": 1, "more": 1}', "it reports '"),
    ('{"index": "1", "name": "node1", "workers": 1}', "it reports '"),
    ('{"index": 1, "name": "\\ud800", "workers": 1}', "it reports '"),
    ('{"index": 1, "name": "node1", "workers": 1e9}', "it reports '"),
    ('{"index": 1, "name": "node1", "workers": 1, "address": "; reboot"}', "it reports '"),
]


@pytest.mark.parametrize(("description", "why"), ODD)
def test_an_agent_that_describes_itself_oddly_is_named(leader, description, why):
    """It knows the secret, so one of the nodes has failed, not the process that it speaks to."""
    with socket.create_connection((HERE, leader.port)) as agent:
        agent.sendall(line("nonce", nonce="n"))
        assert come(leader, lambda _: leader.unproven[0].peer_nonce is not None) == []
        nonce = json.loads(agent.recv(1000).removeprefix(MESSAGE_MARK))["nonce"]
        shown = proof("secret", "agent", leader.port, "n", nonce, description.encode())
        agent.sendall(introduction(description.encode(), shown))
        with pytest.raises(MusterError) as refused:
            come(leader)
    assert HERE in str(refused.value) and why in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("hello", [
    line("nonce", nonce="n", proof=HALF), line("nonce", nonce=HALF, proof=7),
    line("nonce", nonce="n", proof="é"), line("welcome"), b"\n" * 5000,
])  # fmt: skip
def test_a_stranger_in_the_place_of_the_leader_is_not_believed(hello):
    with socket.create_server((HERE, 0)) as trap:
        agent = Agent(trap.getsockname()[1])
        with trap.accept()[0] as caught:
            caught.sendall(hello)
            caught.recv(1000)
        agent.join()
    assert "another program is listening there" in agent.refusal


def test_a_stranger_that_says_a_little_for_ever_is_left(monkeypatch):
    monkeypatch.setattr(job_connection, "LEADER_PROVES_ITSELF_S", 0.5)
    with socket.create_server((HERE, 0)) as trap:
        agent = Agent(trap.getsockname()[1])
        with trap.accept()[0] as caught, suppress(OSError):
            while agent.is_alive():
                caught.sendall(b"\n")
                agent.join(0.2)
    assert "another program is listening there" in agent.refusal


def test_agents_proof_is_useless_to_a_stranger(leader):
    """A program listening in the leader's place can pose neither as the leader nor as an agent."""
    with socket.create_server((HERE, 0)) as trap:
        agent = Agent(trap.getsockname()[1])
        caught, _ = trap.accept()
        with caught, socket.create_connection((HERE, leader.port)) as towards:
            for one in (caught, towards):
                one.settimeout(0.05)
            while agent.is_alive():
                assert list(leader.agents()) == []
                for source, sink in ((caught, towards), (towards, caught)):
                    with suppress(OSError):  # everything from either side, unchanged
                        sink.sendall(source.recv(65_536))
    assert agent.connection is None


def test_a_stranger_who_never_stops_holds_nobody_up(leader):
    """It sends newlines as long as they are accepted; many others connect and send nothing."""
    over = threading.Event()

    def shout() -> None:
        while not over.wait(0.01):
            with suppress(OSError), socket.create_connection((HERE, leader.port), 0.5) as stranger:
                while not over.is_set():
                    stranger.sendall(b"\n" * 65_536)

    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection((HERE, leader.port)))
        thread = threading.Thread(target=shout)
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        for _ in range(20):
            assert list(leader.agents()) == []  # it does not read forever
        welcomed(leader)


def test_strangers_who_say_nothing_hold_few_files_open(leader, monkeypatch):
    monkeypatch.setattr(job_connection, "MOST_UNPROVEN", 5)
    monkeypatch.setattr(job_connection, "LEADER_CLOSES_UNPROVEN_AFTER_S", 0.2)
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection((HERE, leader.port)))
        assert list(leader.agents()) == []
        assert len(leader.unproven) == 5
        welcomed(leader)
        assert len(leader.unproven) <= 5


def test_an_agent_does_nothing_that_is_not_from_its_leader(tmp_path):
    own = assignment(tmp_path)
    mine = signed(own, "token", 0)
    assert verified(mine, "token", 0) == own
    forged = Assign(mine.assignment.replace(b'"cwd": "', b'"cwd": "/elsewhere'), mine.proof)
    assert forged != mine
    for message, token, task in ((forged, "token", 0), (mine, "other", 0), (mine, "token", 1)):
        with pytest.raises(MusterError, match="not come from its leader"):
            verified(message, token, task)
