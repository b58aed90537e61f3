"""Agents meet, start together, and notice at once when one of them is gone."""

import json
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from launch.agent.membership.coordinator import Peers
from launch.agent.membership.door import Who, enter, proof
from launch.nodes.channel import MARK
from muster.errors import MusterError
from tests.launch import pretended
from tests.launch.submit import wait_until


def assignment(index: int, count: int, port: int = 0, ports=None, join_s=120.0, **more):
    one = pretended.assignment(Path("/nowhere"))
    own = {"spec": replace(one.spec, ports=ports, join_s=join_s), "index": index, "count": count}
    own |= {"name": f"node{index}", "ranks": (index,), "coordinator_ports": (port,)}
    own["token"] = "secret"
    return replace(one, **{**own, **more})


def silent(**message) -> None:
    """To a leader."""


@pytest.fixture
def meet():
    made = []

    def make(count: int, **more) -> list:
        own = {"port": 0, **more}
        for index in range(count):
            made.append(Peers(assignment(index, count, **own), silent))
            own = {"port": made[0].door.port}
        return list(made)

    yield make
    for one in made:
        one.close()


def tick(agents, until) -> bool:
    """Each in a thread of its own, as they are in processes of their own."""
    over = threading.Event()

    def live(agent) -> None:
        while not over.is_set():
            agent.tick()
            over.wait(0.01)

    threads = [threading.Thread(target=live, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    try:
        return wait_until(until)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_nobody_starts_before_all_are_there(meet):
    agents = meet(3, join_s=3.0)[:2]
    assert tick(agents, lambda: agents[0].trouble)
    assert all(one.master_port is None for one in agents)
    missing = "after 3 s still missing: node 2 of 3; can it reach 127.0.0.1, and is no firewall"
    assert agents[0].trouble.startswith(missing)


def test_one_that_is_gone_is_noticed_at_once(meet):
    agents = meet(3)
    assert tick(agents, lambda: all(one.master_port for one in agents))
    agents[2].close()
    assert tick(agents[:2], lambda: agents[0].trouble)
    # not that nothing was heard of it for so many seconds
    assert agents[0].trouble.startswith("node2 (127.0.0.1) is gone") and agents[0].lost == 2
    agents[0].close()
    assert tick(agents[1:2], lambda: agents[1].trouble)
    assert agents[1].trouble.startswith("node 0 (127.0.0.1) is gone") and agents[1].lost == 0


def test_strangers_are_not_let_in_and_learn_nothing(meet):
    (coordinator, client) = meet(2)
    own = {"who": json.dumps({"index": 1, "name": "node1", "workers": 2})}
    for hello in (
        [b"GET / HTTP/1.1\r\n\r\n"],
        [line(nonce="n"), line(**own, shown="guess")],
        [line(nonce="n"), line(**own, shown=proof("other", "client"))],
        [line(nonce="n"), line(who=["no", "text"], shown=["no", "text"]), line(**own)],
        [line(nonce="n"), line(**own, shown=HALF)],
        [line(nonce=HALF), line(who=HALF, shown=HALF)],
        [line(nonce="n"), line(**own), line(**own, shown=7)],
        [line(nonce="n"), line(**own, shown="é")],
        [line(nonce="n"), MARK + b'{"who": ' + DEEP + b', "shown": ' + DEEP + b"}\n"],
        [MARK + b'{"nonce": ' + DEEP + b"}\n", line(**own, shown="guess")],
        [MARK + b"[" * 100_000 + b"\n"],
    ):
        with socket.create_connection(("127.0.0.1", coordinator.door.port)) as stranger:
            stranger.settimeout(0.05)
            with suppress(OSError):
                for part in hello:
                    stranger.sendall(part)
                    for _ in range(5):
                        coordinator.tick()
                    assert b"secret" not in stranger.recv(1000)
    assert tick([coordinator, client], lambda: coordinator.master_port)


HALF = "\ud800"  # of a character; no encoder takes it alone
DEEP = b"[" * 900 + b"]" * 900  # JSON is read to this depth, but repr and json.dumps give up


def line(**message) -> bytes:
    return MARK + json.dumps(message).encode() + b"\n"


ODD = [
    ("[]", "it says '[]' of itself"),
    ("7", "it says '7' of itself"),
    ("{", "it says '{' of itself"),
    ("[" * 900 + "]" * 900, "of itself"),
    ('{"index": 1}', "of itself"),
    ('{"index": 1, "name": "node1", "workers": 1, "more": 1}', "of itself"),
    ('{"index": "1", "name": "node1", "workers": 1}', "of itself"),
    ('{"index": 1, "name": "\\ud800", "workers": 1}', "of itself"),
    ('{"index": 1, "name": "node1", "workers": 1e9}', "of itself"),
    ('{"index": 1, "name": "node1", "workers": 1, "address": "; reboot"}', "of itself"),
    ('{"index": 7, "name": "node1", "workers": 1}', "says it is node 7"),
]


@pytest.mark.parametrize(("description", "why"), ODD)
def test_an_agent_that_describes_itself_oddly_is_named(meet, description, why):
    """It knows the token, so it is one of the nodes that fails, not the process it speaks to."""
    (coordinator,) = meet(2)[:1]
    port = coordinator.door.port
    with socket.create_connection(("127.0.0.1", port)) as agent, agent.makefile("rb") as lines:
        agent.sendall(line(nonce="n"))
        live = threading.Thread(target=lambda: tick([coordinator], lambda: coordinator.trouble))
        live.start()
        nonce = json.loads(lines.readline().removeprefix(MARK))["nonce"]
        shown = proof("secret", "client", port, "n", nonce, description)
        agent.sendall(line(who=description, shown=shown))
        live.join()
    assert "127.0.0.1" in coordinator.trouble and why in coordinator.trouble
    assert coordinator.trouble.isprintable()


@pytest.mark.parametrize("hello", [
    line(nonce="n", shown=HALF), line(nonce=HALF, shown=7), line(nonce=[], shown="é"), b"\n" * 5000,
])  # fmt: skip
def test_a_stranger_in_the_place_of_node_0_is_not_believed(hello):
    with socket.create_server(("127.0.0.1", 0)) as trap:
        where, who = trap.getsockname(), Who(1, "node1", 1)

        def answer() -> None:
            with trap.accept()[0] as caught:
                caught.sendall(hello)
                caught.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MusterError, match="another program listens there"):
            enter(where, "secret", who, wait_s=60.0)
        thread.join()


def test_a_stranger_that_says_a_little_for_ever_is_left(monkeypatch):
    monkeypatch.setattr("launch.agent.membership.door.HELLO_S", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as trap:

        def answer() -> None:
            with trap.accept()[0] as caught, suppress(OSError):
                while not over.wait(0.2):
                    caught.sendall(b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MusterError, match="another program listens there"):
            enter(trap.getsockname(), "secret", Who(1, "node1", 1), wait_s=60.0)
        over.set()
        thread.join()


@pytest.mark.parametrize("port", ["x", -1, True, None, HALF, 2**40])
def test_an_odd_port_of_node_0_is_that_node_s_failure(meet, port):
    (coordinator, client) = meet(3)[:2]  # the third does not come, so that nobody starts
    assert tick([coordinator, client], lambda: coordinator._links and client._links)
    coordinator._links[1].channel.send(start=port)
    assert tick([client], lambda: client.trouble)
    assert "node 0 (127.0.0.1) says an odd port for torch" in client.trouble
    assert client.master_port is None


def test_what_a_member_says_to_a_listener_opens_no_door(meet):
    """Who listens at a port that may be the coordinator's cannot be it, nor come in instead."""
    coordinator = meet(2)[0]
    with socket.create_server(("127.0.0.1", 0)) as trap:
        client = Peers(assignment(1, 2, trap.getsockname()[1]), silent)
        knock = threading.Thread(target=client.tick)
        knock.start()
        caught, _ = trap.accept()
        with caught, socket.create_connection(("127.0.0.1", coordinator.door.port)) as towards:
            for one in (caught, towards):
                one.settimeout(0.05)
            while knock.is_alive():
                coordinator.tick()
                for source, sink in ((caught, towards), (towards, caught)):
                    with suppress(OSError):  # all that either says, word for word
                        sink.sendall(source.recv(65_536))
            assert not coordinator._links and not client._links
        knock.join()
        client.close()


def test_a_stranger_who_never_stops_holds_nobody_up(meet):
    """Newlines, for as long as they are taken; and many who say nothing."""
    (coordinator, client) = meet(2)
    over, port = threading.Event(), coordinator.door.port

    def shout() -> None:
        while not over.wait(0.01):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5) as stranger:
                while not over.is_set():
                    stranger.sendall(b"\n" * 65_536)

    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        thread = threading.Thread(target=shout)
        thread.start()
        stack.callback(thread.join)
        stack.callback(over.set)
        for _ in range(20):
            coordinator.tick()  # it does not read for ever
        assert tick([coordinator, client], lambda: coordinator.master_port)


def test_strangers_who_say_nothing_hold_few_files_open(meet, monkeypatch):
    monkeypatch.setattr("launch.agent.membership.door.STRANGERS", 5)
    monkeypatch.setattr("launch.agent.membership.door.ROOM_S", 0.2)
    (coordinator, client) = meet(2)
    with ExitStack() as stack:
        for _ in range(50):
            where = ("127.0.0.1", coordinator.door.port)
            stack.enter_context(socket.create_connection(where))
        coordinator.tick()
        assert len(coordinator.door.strangers) == 5
        assert tick([coordinator, client], lambda: coordinator.master_port)
        assert len(coordinator.door.strangers) <= 5


def test_a_head_that_is_held_up_is_waited_for(meet):
    (coordinator, client) = meet(2)
    assert tick([client], lambda: client._waited_s() > 3.0)
    agents = [coordinator, client]
    assert tick(agents, lambda: all(one.master_port for one in agents))
    assert coordinator.master_port == client.master_port
    assert [one.trouble for one in agents] == [None, None]


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1"])
def test_a_port_of_somebody_else_and_an_address_of_another_machine_are_refused(address):
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = assignment(0, 2, other.getsockname()[1], coordinator_address=address)
        with pytest.raises(MusterError, match=f"node0 cannot listen at {address}.*is that its add"):
            Peers(where, silent)


@pytest.mark.parametrize("start", range(21))  # wherever in the range the search begins
def test_where_a_firewall_is_all_ports_come_from_a_range(meet, start, monkeypatch):
    monkeypatch.setattr("launch.nodes.this_machine.os.getpid", lambda: start)
    with socket.create_server(("127.0.0.1", 0)) as other:
        first = other.getsockname()[1]
        allowed = tuple(range(first, first + 21))
        coordinator, client = meet(2, coordinator_ports=allowed, ports=(first, first + 20))
        assert tick([coordinator, client], lambda: client.master_port)
        used = {coordinator.door.port, client.master_port}
        assert len(used) == 2 and used <= {*allowed[1:]}
