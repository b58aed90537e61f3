"""Agents meet, start together, and notice at once when one of them is gone."""

import json
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from launch.agent.membership.coordinator import Peers
from launch.agent.membership.door import proof
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


def line(**message) -> bytes:
    return MARK + json.dumps(message).encode() + b"\n"


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
