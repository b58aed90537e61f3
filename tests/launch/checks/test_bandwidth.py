"""The slowest connection is reported in words that the numbers bear out."""

import itertools

import pytest

from launch.checks import bandwidth

NAMES = ["node0", "node1", "node2", "node3"]


def measured(slow=None, wrong=0):
    pairs = [
        {"from": one, "to": two, "bytes": 1 << 20, "gbit_s": (slow or {}).get((one, two), 9.4)}
        for one, two in itertools.permutations(range(4), 2)
    ]
    collective = {"name": "all_reduce", "bytes": 1024, "count": 256, "type": "float"}
    numbers = {"redop": "sum", "time_us": 10.0, "algbw_gb_s": 0.1, "busbw_gb_s": 0.15}
    collectives = [{**collective, **numbers, "wrong": wrong}]
    return {"hosts": ["h"] * 4, "backend": "gloo", "pairs": pairs, "collectives": collectives}


OF_NODE_2 = {(2, other): 0.1 for other in (0, 1, 3)}
REST = "Gbit/s; others reach 9.40"
LINK = "; all slow pairs include node2: check its link"


SLOW = [
    ({(3, 1): 0.94}, f"slow: node1-node3 0.940 {REST}"),  # the same pair
    (OF_NODE_2, f"slow: node0-node2 0.100, node1-node2 0.100, node2-node3 0.100 {REST}{LINK}"),
    ({(0, 1): 0.5, (2, 3): 0.3}, f"slow: node2-node3 0.300, node0-node1 0.500 {REST}"),
    ({(0, 1): 7.0}, "all pairs reach 7.00 to 9.40 Gbit/s; slowest: node0-node1"),  # noise
]


@pytest.mark.parametrize(("slow", "sentence"), SLOW)
def test_pairs_that_are_slow_are_named_and_what_they_share(slow, sentence):
    assert bandwidth.verdict(measured(slow=slow), NAMES)[0] == sentence


def test_slow_node_of_three_is_named():
    three = measured(slow={(1, 0): 0.1, (1, 2): 0.1})
    three["pairs"] = [one for one in three["pairs"] if 3 not in (one["from"], one["to"])]
    assert "slow pairs include node1" in bandwidth.verdict(three, NAMES)[0]


def test_wrong_values_are_a_problem():
    assert bandwidth.verdict(measured(), NAMES)[1] == []
    (problem,) = bandwidth.verdict(measured(wrong=3), NAMES)[1]
    assert "all_reduce of 1024 bytes: 3 values are wrong" in problem


def test_rank_names_have_numbers_where_nodes_have_several_ranks():
    nodes = {0: "a", 1: "b", 2: "b", 3: "c"}
    assert bandwidth.names(measured(), nodes) == ["a.0", "b.1", "b.2", "c.3"]
    assert bandwidth.names(measured(), dict(enumerate(NAMES))) == NAMES


def test_the_table_has_the_columns_of_nccl_tests():
    (_, matrix), (_, collectives) = bandwidth.tables(measured(), NAMES)
    assert [column.header for column in matrix.columns][1:] == NAMES
    assert [column.header for column in collectives.columns] == [*bandwidth.COLUMNS]
