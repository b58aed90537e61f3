"""Agents meet, start together, and notice at once when one of them is gone."""

import json
import socket
import time

import pytest

from configs.errors import MusterError
from launch.supervise.assignment import Assignment, Command
from launch.supervise.head import Head
from launch.supervise.member import Member
from launch.supervise.peers import proof
from launch.supervise.wire import MARK
from tests.launch.submit import wait_until


def assignment(index: int, count: int, port: int = 0, **more) -> Assignment:
    plain = {
        "run_id": "r",
        "run_dir": "/nowhere",
        "cwd": "/",
        "index": index,
        "count": count,
        "name": f"node{index}",
        "workers": index + 1,
        "commands": (Command(("true",), {}),),
        "head_address": "127.0.0.1",
        "head_ports": (port,),
        "master_port": None,
        "token": "secret",
    }
    return Assignment(**{**plain, **more})


@pytest.fixture
def meet():
    made = []

    def make(count: int, **more) -> list:
        head = Head(assignment(0, count, **more))
        members = [Member(assignment(index, count, head.port)) for index in range(1, count)]
        made.extend([head, *members])
        return [head, *members]

    yield make
    for one in made:
        one.close()


def tick(agents, until, timeout_s: float = 10) -> bool:
    def once() -> bool:
        for agent in agents:
            agent.tick()
        return until()

    return wait_until(once, timeout_s)


def test_all_start_together_with_one_port_and_know_their_ranks(meet):
    agents = meet(3)
    assert tick(agents, lambda: all(one.master_port for one in agents))
    assert len({one.master_port for one in agents}) == 1
    assert [one.ranks for one in agents] == [[0], [1, 2], [3, 4, 5]]
    assert all(abs(one.clock_offset_s) < 0.1 for one in agents)
    for member in agents[1:]:
        member.done()
    assert tick(agents[:1], agents[0].settled) and agents[0].trouble is None


def test_nobody_starts_before_all_are_there(meet):
    agents = meet(3, join_s=1.0)[:2]
    assert tick(agents, lambda: all(one.trouble for one in agents), timeout_s=5)
    assert all(one.master_port is None for one in agents)
    assert {one.trouble for one in agents} == {
        "after 1 s still missing: node 2 of 3; can it reach 127.0.0.1, and is no firewall between?"
    }


def test_one_that_is_gone_stops_the_others_at_once(meet):
    agents = meet(3)
    assert tick(agents, lambda: all(one.master_port for one in agents))
    agents[2].close()
    began = time.monotonic()
    assert tick(agents[:2], lambda: all(one.trouble for one in agents[:2]))
    assert time.monotonic() - began < 2
    said = {one.trouble for one in agents[:2]}
    assert said == {"node2 (127.0.0.1) is gone: its agent was killed, or the node went down"}


def test_what_one_says_of_its_failure_is_what_all_hear(meet):
    agents = meet(3)
    assert tick(agents, lambda: all(one.master_port for one in agents))
    agents[1].fail("torchrun on node1 was killed by SIGKILL")
    others = [agents[0], agents[2]]
    assert tick(others, lambda: all(one.trouble for one in others))
    assert {one.trouble for one in others} == {"torchrun on node1 was killed by SIGKILL"}


def test_two_that_say_they_are_the_same_node(meet):
    agents = meet(3)
    agents[2] = Member(assignment(1, 3, agents[0].port))
    assert tick(agents, lambda: agents[0].trouble)
    assert "two agents say they are number 1" in agents[0].trouble
    agents[2].close()


def test_strangers_are_not_let_in_and_learn_nothing(meet):
    (head, member) = meet(2)
    for hello in (
        b"GET / HTTP/1.1\r\n\r\n",
        MARK + json.dumps({"index": 1, "shown": "guess"}).encode() + b"\n",
        MARK + json.dumps({"index": 1, "shown": proof("other", "member")}).encode() + b"\n",
        MARK + b"[" * 100_000 + b"\n",
    ):
        with socket.create_connection(("127.0.0.1", head.port)) as stranger:
            stranger.sendall(hello)
            stranger.settimeout(0.05)
            for _ in range(5):
                head.tick()
            try:
                assert b"secret" not in stranger.recv(1000)
            except OSError:
                continue
    assert tick([head, member], lambda: head.master_port)


def test_a_port_of_somebody_else_is_passed_over():
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        head = Head(assignment(0, 2))
        member = Member(assignment(1, 2, 0, head_ports=(taken, head.port)))
        assert tick([head, member], lambda: member.master_port)
        member.close()
        head.close()
        with pytest.raises(MusterError, match=r"node0 cannot listen at 127\.0\.0\.1"):
            Head(assignment(0, 2, taken))


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(MusterError, match=r"cannot listen at 192\.0\.2\.1.*is that its address"):
        Head(assignment(0, 2, head_address="192.0.2.1"))
