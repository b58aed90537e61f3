"""Real connections to node 0: both ends report the same one; strangers' data cost nothing."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from configs.settings.launch import PortRange
from launch.agent import connections
from launch.agent.connections import Connector, Listener, Meeting, listen_or_connect
from launch.nodes.messages import (
    Accepted,
    Broken,
    Connect,
    Connected,
    ConnectionEnds,
    Endpoint,
    KeepConnection,
    Message,
    Unreached,
)
from launch.nodes.this_machine import free_port, ports_of
from launch.spec import Assignment
from muster.errors import MusterError
from tests.launch import pretended
from tests.launch.submit import wait_until

HERE = "127.0.0.1"


@pytest.fixture
def node_0():
    made = Listener("node0", HERE, [0])
    yield made
    made.close()


@pytest.fixture
def connect():
    """Make other nodes, which may connect from an address of their own."""
    with ExitStack() as stack:

        def make(port: int, own: str | None = None, address: str = HERE) -> Connector:
            made = Connector(own)
            made.hear(Connect(address, port))
            stack.callback(made.close)
            return made

        yield make


def reports_until(agents, is_enough: Callable[[list], bool]) -> list[list[Message]]:
    """Collect the reports of each agent until they are enough."""
    reports: list[list[Message]] = [[] for _ in agents]

    def look() -> bool:
        for agent, messages in zip(agents, reports, strict=True):
            messages += agent.tick()
        return is_enough(reports)

    wait_until(look, about=lambda: reports)
    return reports


def open_files_of(node_0: Listener) -> int:
    """How many connections to node 0 this process has accepted and not closed."""
    every = psutil.Process().net_connections("tcp4")
    own = [one for one in every if one.laddr.port == node_0.port]
    return sum(one.status != psutil.CONN_LISTEN for one in own)


def first_report(agent) -> Message:
    ((report, *_),) = reports_until([agent], all_of)
    return report


def all_of(reports: list[list[Message]]) -> bool:
    return all(reports)


def kinds(messages: list[Message]) -> list[type[Message]]:
    return [type(message) for message in messages]


def mirrored(ends: ConnectionEnds) -> ConnectionEnds:
    return ConnectionEnds(ends.peer, ends.own)


def test_both_ends_report_the_same_connection(node_0, connect):
    """The other node connects from its own address on the network, whatever the route uses."""
    node = connect(node_0.port, own="127.0.0.7")
    (accepted,), (connected,) = reports_until([node_0, node], all_of)
    assert mirrored(accepted.ends) == connected.ends
    assert connected.ends.peer == Endpoint(HERE, node_0.port)
    assert (node_0.own_address, node.own_address) == (HERE, "127.0.0.7")


@pytest.mark.parametrize("who", ["node 0", "the other node"])
def test_an_end_that_closes_is_reported_by_the_other_at_once(node_0, connect, who):
    node = connect(node_0.port)
    (accepted,), (connected,) = reports_until([node_0, node], all_of)
    node_0.hear(KeepConnection(accepted.ends))
    gone, left, own = node, node_0, accepted.ends
    if who == "node 0":
        gone, left, own = node_0, node, connected.ends
    gone.close()
    broken = first_report(left)
    assert broken == Broken(own, "closed")


def test_a_node_whose_connection_ends_connects_again(node_0, connect):
    node = connect(node_0.port)
    reports_until([node_0, node], all_of)
    node_0._forget(next(iter(node_0._open.values())))
    _, own = reports_until([node_0, node], lambda reports: Connected in kinds(reports[1]))
    assert kinds(own) == [Broken, Connected] and not node.is_cut_off


def test_node_that_lost_node_0_counts_as_cut_off(node_0, connect):
    """From then on it also waits less long for a silent leader."""
    node = connect(node_0.port)
    assert not node.is_cut_off  # it is not connected yet
    reports_until([node_0, node], all_of)
    assert not node.is_cut_off
    node_0.close()
    first_report(node)
    assert node.is_cut_off


def test_node_retries_until_node_0_listens_and_reports_refusal(connect):
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
    node = connect(port)
    refused = first_report(node)
    assert refused == Unreached("connection refused")
    assert node.tick() == []  # not reported again
    node_0 = Listener("node0", HERE, [port])
    with ExitStack() as stack:
        stack.callback(node_0.close)
        _, own = reports_until([node_0, node], all_of)
    assert kinds(own) == [Connected]


@pytest.mark.parametrize("name", ["localhost", "no-such-host.invalid"])
def test_node_0_may_have_a_name_as_address(node_0, connect, name):
    """A launcher from another package may know only the name."""
    report = first_report(connect(node_0.port, address=name))
    if name == "localhost":
        assert report.ends.peer == Endpoint(HERE, node_0.port)
    else:
        assert isinstance(report, Unreached) and report.reason


def test_an_own_address_that_this_machine_does_not_have_is_said(node_0, connect):
    report = first_report(connect(node_0.port, own="192.0.2.1"))
    assert "address" in report.reason


def test_data_of_a_connected_node_does_not_hide_its_end(node_0, connect):
    """Nobody reads the data, but the end of the connection after them is noticed all the same."""
    with socket.create_connection((HERE, node_0.port)) as other:
        accepted = first_report(node_0)
        node_0.hear(KeepConnection(accepted.ends))
        other.sendall(b"muster:{\n")
        for _ in range(10):
            assert node_0.tick() == []
        other.shutdown(socket.SHUT_WR)
        broken = first_report(node_0)
    assert broken == Broken(accepted.ends, "closed")


@pytest.mark.slow
def test_a_flood_costs_few_bytes_and_no_time(node_0, connect):
    """Senders are stopped by their own kernel, because the receiver's kernel accepts no more."""
    sent, over = [0] * 4, threading.Event()

    def shout(at: int) -> None:
        with suppress(OSError), socket.create_connection((HERE, node_0.port), 0.5) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            while not over.is_set():
                with suppress(TimeoutError):
                    sent[at] += stranger.send(b"\n" * 65_536)

    threads = [threading.Thread(target=shout, args=(at,)) for at in range(len(sent))]
    for thread in threads:
        thread.start()
    try:
        (others,) = reports_until([node_0], lambda reports: len(reports[0]) == len(sent))
        assert kinds(others) == [Accepted] * len(sent)
        node = connect(node_0.port)
        (accepted,), (connected,) = reports_until([node_0, node], all_of)
        assert mirrored(accepted.ends) == connected.ends
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert max(sent) < 1_000_000


def test_strangers_hold_few_files_open_and_no_node_out(node_0, connect, monkeypatch):
    monkeypatch.setattr(connections, "MOST_UNKNOWN", 5)
    monkeypatch.setattr(connections, "NODE_0_CLOSES_UNKNOWN_AFTER_S", 0.1)
    known = connect(node_0.port)
    (accepted,), _ = reports_until([node_0, known], all_of)
    node_0.hear(KeepConnection(accepted.ends))
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.create_connection((HERE, node_0.port)))
        node_0.tick()
        assert open_files_of(node_0) == 6
        node = connect(node_0.port)
        wanted = Accepted(mirrored(first_report(node).ends))
        (reports,) = reports_until([node_0], lambda reports: wanted in reports[0])
        assert open_files_of(node_0) <= 6
        assert known.tick() == [] and Broken(accepted.ends, "closed") not in reports


def test_no_stranger_comes_in_after_the_start(node_0, connect):
    node = connect(node_0.port)
    (accepted,), _ = reports_until([node_0, node], all_of)
    node_0.hear(KeepConnection(accepted.ends))
    with socket.create_connection((HERE, node_0.port)) as stranger:
        first_report(node_0)
        node_0.stop_accepting()
        stranger.settimeout(300.0)
        assert stranger.recv(1) == b""
    assert node.tick() == node_0.tick() == []
    late = connect(node_0.port)
    refused = first_report(late)
    assert refused == Unreached("connection refused")


def test_connections_have_keepalive_and_fifteen_second_timeout_at_both_ends(node_0, connect):
    node = connect(node_0.port)
    reports_until([node_0, node], all_of)
    (accepted,) = node_0._open.values()
    for end in (accepted.connection, node._connection):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
        values = [end.getsockopt(socket.IPPROTO_TCP, option) for option in options]
        assert values == [1, 1, 15_000]


@pytest.mark.parametrize("address", [HERE, "192.0.2.1"])
def test_taken_port_or_foreign_address_of_node_0_is_refused(address):
    with socket.create_server((HERE, 0)) as other:
        ports = [other.getsockname()[1]]
        with pytest.raises(MusterError, match=f"node0 cannot listen on {address}.*is that its add"):
            Listener("node0", address, ports)


def test_node_0_listens_at_the_first_free_port_of_a_range():
    with socket.create_server((HERE, 0)) as other:
        first = other.getsockname()[1]
        node_0 = Listener("node0", HERE, range(first, first + 20))
        node_0.close()
    assert first < node_0.port < first + 20


def assignment(index: int, count: int, ports: tuple[int, int] | None = None, **more):
    (one,) = [pretended.assignment(Path("/nowhere"))]
    own = {"index": index, "counts": (1,) * count, "name": f"node{index}", "ranks": (index,)}
    own |= {"spec": replace(one.spec, ports=ports)}
    own["coordinator_ports"] = tuple(range(ports[0], ports[1] + 1)) if ports else (0,)
    return replace(one, **{**own, **more})


class Agent:
    """The connections of one node, and its reports to the leader."""

    def __init__(self, own: Assignment) -> None:
        self.reports: list[Message] = []
        self.end = listen_or_connect(own, self.reports.append)
        self.hear = self.end.hear

    def tick(self) -> list[Message]:
        """Return everything that it has reported so far."""
        self.reports += self.end.tick()
        return self.reports


@pytest.fixture
def agents():
    """Make the connections of a given number of nodes."""
    with ExitStack() as stack:

        def make(count: int, **more) -> list[Agent]:
            made = [Agent(assignment(index, count, **more)) for index in range(count)]
            for one in made:
                stack.callback(one.end.close)
            return made

        yield make


@pytest.mark.parametrize("start", [0, 10, 20])  # where in the range the search begins
def test_where_a_firewall_is_all_ports_come_from_a_range(agents, start, monkeypatch):
    monkeypatch.setattr("launch.nodes.this_machine.os.getpid", lambda: start)
    with socket.create_server((HERE, 0)) as other:
        first = other.getsockname()[1]
        node_0, node_1 = agents(2, ports=PortRange(first, first + 20))
        where = node_0.reports.pop().at
        node_1.hear(Connect(where.address, where.port))
        wait_until(lambda: all([node_0.tick(), node_1.tick()]))
        node_0.hear(KeepConnection(node_0.reports.pop().ends))
        port = free_port(ports=ports_of(PortRange(first, first + 20)))
        assert len({where.port, port}) == 2
        assert {where.port, port} <= {*range(first + 1, first + 21)}
        assert node_0.end.own_address == node_1.end.own_address == HERE


def reported(meeting: Meeting, index: int, reports: list[Message]) -> None:
    """Let the leader take the reports of this node."""
    for report in reports:
        meeting.take(index, report, now_s=0.0)


def test_a_program_that_accepts_everything_is_no_node_0(agents):
    """This node may have the same address as node 0, for example; node 0 listens elsewhere."""
    node_0, node_1 = agents(2)
    with socket.create_server((HERE, 0)) as other:
        node_1.hear(Connect(HERE, other.getsockname()[1]))
        wait_until(node_1.tick)
        caught, _ = other.accept()
        caught.close()
    meeting = Meeting(["node0", "node1"], 300.0, now_s=0.0)
    reported(meeting, 0, node_0.reports)
    reported(meeting, 1, node_1.reports)
    assert meeting.missing == [1]
    assert "but node 0 has no such connection: another program" in (meeting.failure(301.0) or "")


def test_runs_sharing_a_port_range_connect_only_own_nodes(agents):
    """Each leader tells its nodes the port of its own node 0, and both ends confirm it."""
    with socket.create_server((HERE, 0)) as taken:
        first = taken.getsockname()[1]
        runs = [agents(2, ports=PortRange(first, first + 20)) for _ in range(2)]
        ports = []
        for node_0, node_1 in runs:
            where = node_0.reports[0].at
            ports.append(where.port)
            node_1.hear(Connect(where.address, where.port))
            wait_until(lambda: all([node_0.tick()[1:], node_1.tick()]))  # noqa: B023
        assert len({*ports, first}) == 3
    for at, (node_0, _) in enumerate(runs):
        for of, (_, node_1) in enumerate(runs):
            meeting = Meeting(["node0", "node1"], 300.0, now_s=0.0)
            reported(meeting, 0, node_0.reports)
            reported(meeting, 1, node_1.reports)
            assert meeting.missing == ([] if at == of else [1])
