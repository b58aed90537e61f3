"""A node counts as connected when it and node 0 report the same connection; without sockets."""

import itertools

import pytest

from launch.agent.connections import MOST_ACCEPTED, Loss, Meeting
from launch.deadlines import BOTH_ENDS_REPORT_BREAK_S
from launch.nodes.messages import (
    Accepted,
    Broken,
    Connected,
    ConnectionEnds,
    Endpoint,
    Listening,
    Unreached,
)

NODE_0 = ["10.10.1.1", 20_000]
NOW_S = 100.0


def node(index: int, port: int = 40_000) -> list:
    return [f"10.10.1.{index + 1}", port]


def ends(own: list, peer: list) -> ConnectionEnds:
    return ConnectionEnds(Endpoint(*own), Endpoint(*peer))


def meeting(count: int, join_s: float = 300.0) -> Meeting:
    made = Meeting([f"host{index}" for index in range(count)], join_s, NOW_S)
    made.take(0, Listening(Endpoint(*NODE_0)), NOW_S)
    return made


def begun(count: int) -> Meeting:
    """A meeting in which all nodes are connected and the workers are running."""
    made = meeting(count)
    for index in range(1, count):
        made.take(0, Accepted(ends(NODE_0, node(index))), NOW_S)
        made.take(index, Connected(ends(node(index), NODE_0)), NOW_S)
    assert not made.missing
    made.has_begun = True
    return made


def test_a_node_counts_when_both_ends_report_the_same_connection():
    made = meeting(3)
    assert made.missing == [1, 2] and made.cut_off_node == 0
    made.take(0, Accepted(ends(NODE_0, node(1))), NOW_S)
    made.take(2, Connected(ends(node(2), NODE_0)), NOW_S)
    assert made.missing == [1, 2] and made.newly_confirmed() == []
    made.take(1, Connected(ends(node(1), NODE_0)), NOW_S)
    made.take(0, Accepted(ends(NODE_0, node(2))), NOW_S)
    assert made.missing == []
    met = made.newly_confirmed()
    assert {one.peer for one in met} == {Endpoint(*node(1)), Endpoint(*node(2))}
    assert made.newly_confirmed() == []


@pytest.mark.parametrize("accepted", [
    ends(NODE_0, node(1, port=40_001)),
    ends(NODE_0, node(2)),
    ends(["10.10.1.1", 20_001], node(1)),
    ends(["172.17.0.1", 20_000], node(1)),
])  # fmt: skip
def test_another_connection_than_a_node_s_own_does_not_count(accepted):
    made = meeting(2)
    made.take(0, Accepted(accepted), NOW_S)
    made.take(1, Connected(ends(node(1), NODE_0)), NOW_S)
    assert made.missing == [1]


def test_an_address_is_the_same_however_an_end_writes_it():
    made = meeting(4)
    made.take(0, Accepted(ends(["::ffff:10.10.1.1", 20_000], ["::ffff:10.10.1.2", 40_000])), NOW_S)
    made.take(1, Connected(ends(node(1), NODE_0)), NOW_S)
    made.take(0, Accepted(ends(["fd00:0::1", 20_000], ["fd00::2", 40_000])), NOW_S)
    made.take(2, Connected(ends(["fd00::0:2", 40_000], ["fd00::1", 20_000])), NOW_S)
    made.take(0, Accepted(ends(["fe80::1%eth0", 20_000], ["fe80::2%eth0", 40_000])), NOW_S)
    made.take(3, Connected(ends(["fe80::2%exp1", 40_000], ["fe80::1%exp1", 20_000])), NOW_S)
    assert made.missing == []


def test_missing_node_is_named_once_and_ends_the_run():
    made = meeting(4)
    made.take(0, Accepted(ends(NODE_0, node(1))), NOW_S)
    made.take(1, Connected(ends(node(1), NODE_0)), NOW_S)
    assert made.waiting(109.0) is None
    assert made.waiting(111.0) == "waiting for node 2, node 3"
    assert made.waiting(112.0) is None
    made.take(0, Accepted(ends(NODE_0, node(2))), NOW_S)
    made.take(2, Connected(ends(node(2), NODE_0)), NOW_S)
    assert made.waiting(113.0) == "waiting for node 3" and made.cut_off_node == 3
    made.take(3, Unreached("connection refused"), NOW_S)
    assert made.failure(399.0) is None
    assert made.failure(401.0) == (
        "after 300 s, still missing: node 3 (of 4); check that it can reach 10.10.1.1 (port "
        "20000), that node 0 has this address on their network, and that no firewall is in "
        "between; host3 could not connect: connection refused"
    )


def test_another_program_in_the_place_of_node_0_is_said():
    made = meeting(2, join_s=5.0)
    made.take(1, Connected(ends(["172.17.0.1", 40_000], ["172.17.0.1", 20_000])), NOW_S)
    why = made.failure(106.0)
    assert why is not None and why.endswith(
        "host1 is connected from 172.17.0.1 (port 40000) to 172.17.0.1 (port 20000), but node 0 "
        "has no such connection: another program is listening there; choose the network with "
        "--network"
    )


def test_addresses_changed_by_nat_are_reported_from_both_ends():
    made = meeting(2, join_s=5.0)
    made.take(0, Accepted(ends(NODE_0, ["192.168.0.1", 1_234])), NOW_S)
    made.take(1, Connected(ends(node(1), NODE_0)), NOW_S)
    why = made.failure(106.0)
    assert why is not None
    assert "host1 is connected from 10.10.1.2 (port 40000) to 10.10.1.1 (port 20000), but" in why
    assert "connections from 192.168.0.1 (port 1234) to 10.10.1.1 (port 20000): " in why
    assert "(NAT)" in why


def test_a_connection_that_breaks_before_the_start_is_no_loss():
    made = meeting(2)
    for port in (40_000, 40_001):
        made.take(0, Accepted(ends(NODE_0, node(1, port))), NOW_S)
        made.take(1, Connected(ends(node(1, port), NODE_0)), NOW_S)
        assert made.missing == [] and len(made.newly_confirmed()) == 1
        made.take(0, Broken(ends(NODE_0, node(1, port)), "closed"), 101.0)
        assert made.missing == [1]
        made.take(1, Broken(ends(node(1, port), NODE_0), "closed"), 101.0)
    assert made.loss(1_000.0) is None


def test_strangers_that_end_are_forgotten_and_lose_nobody():
    made = meeting(2)
    made.take(0, Accepted(ends(NODE_0, node(1))), NOW_S)
    for port in range(2 * MOST_ACCEPTED):
        made.take(0, Accepted(ends(NODE_0, ["10.9.9.9", port])), NOW_S)
    assert len(made._accepted) <= MOST_ACCEPTED + 1
    made = begun(3)
    made.take(0, Broken(ends(NODE_0, ["10.9.9.9", 7]), "closed"), 101.0)
    made.take(1, Broken(ends(["10.9.9.9", 7], NODE_0), "closed"), 101.0)
    made.take(2, Broken(ends(node(1), NODE_0), "closed"), 101.0)  # not its own connection
    assert made.loss(200.0) is None


LOSSES = [
    # the reports of four nodes, as (reporting node, node whose connection broke), and the lost node
    ([(0, 2)], 2),
    ([(2, 2)], 0),
    ([(0, 2), (2, 2)], 2),
    ([(1, 1), (2, 2), (3, 3)], 0),
    ([(0, 1), (0, 2), (0, 3), (1, 1), (2, 2), (3, 3)], 0),
    ([(0, 3), (3, 3), (0, 2), (2, 2)], 2),
]


@pytest.mark.parametrize(("reports", "lost"), LOSSES)
def test_lost_node_does_not_depend_on_order_of_reports(reports, lost):
    orders = itertools.permutations(reports) if len(reports) < 5 else [reports, reports[::-1]]
    for order in orders:
        made = begun(4)
        for by, of in order:
            both = (NODE_0, node(of)) if by == 0 else (node(of), NODE_0)
            made.take(by, Broken(ends(*both), "silent"), 200.0)
        assert made.loss(200.0 + BOTH_ENDS_REPORT_BREAK_S / 2) is None  # others may still report
        at = 200.0 + BOTH_ENDS_REPORT_BREAK_S
        assert made.loss(at) == Loss(lost, "silent", BOTH_ENDS_REPORT_BREAK_S)
