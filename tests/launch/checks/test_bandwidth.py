"""The slowest way is said in words that the numbers bear out."""

import pytest

from launch.checks import bandwidth

NAMES = ["node0", "node1", "node2", "node3"]


def measured(slow=None, wrong=0, usual=9.4):
    pairs = [
        {"from": one, "to": two, "bytes": 1 << 20, "gbit_s": (slow or {}).get((one, two), usual)}
        for one in range(4)
        for two in range(4)
        if one != two
    ]
    collective = {"name": "all_reduce", "bytes": 1024, "count": 256, "type": "float"}
    numbers = {"redop": "sum", "time_us": 10.0, "algbw_gb_s": 0.1, "busbw_gb_s": 0.15}
    collectives = [{**collective, **numbers, "wrong": wrong}]
    return {"hosts": ["h"] * 4, "backend": "gloo", "pairs": pairs, "collectives": collectives}


def words(**how):
    return bandwidth.verdict(measured(**how), NAMES)[0]


def test_one_slow_pair_is_named():
    assert words(slow={(1, 3): 0.94}) == "the pair node1-node3 carries 0.940 Gbit/s; others 9.40"
    # from the other end it is the same pair
    assert words(slow={(3, 1): 0.94}) == "the pair node1-node3 carries 0.940 Gbit/s; others 9.40"


def test_pairs_that_share_a_node_point_to_its_link():
    slow = {(2, other): 0.1 for other in (0, 1, 3)}
    assert words(slow=slow) == (
        "all 3 slow pairs are with node2: they carry 0.100 Gbit/s, others 9.40; look at its link"
    )


def test_one_slow_node_of_three_is_not_what_is_usual():
    three = measured(slow={(1, 0): 0.1, (1, 2): 0.1})
    three["pairs"] = [one for one in three["pairs"] if 3 not in (one["from"], one["to"])]
    assert "slow pairs are with node1" in bandwidth.verdict(three, NAMES)[0]


def test_slow_pairs_without_a_node_in_common_are_listed():
    reply = words(slow={(0, 1): 0.5, (2, 3): 0.3})
    assert reply == (
        "the pair node2-node3 carries 0.300 Gbit/s, node0-node1 carries 0.500 Gbit/s; others 9.40"
    )


def test_noise_is_not_called_slow():
    assert words(slow={(0, 1): 7.0}) == (
        "all 6 pairs carry 7.00 to 9.40 Gbit/s; slowest: node0-node1"
    )


def test_the_best_size_counts():
    both = measured()
    both["pairs"].append({"from": 0, "to": 1, "bytes": 1 << 24, "gbit_s": 30.0})
    assert bandwidth.best(both)[0, 1] == 30.0


def test_wrong_values_are_a_problem():
    assert bandwidth.verdict(measured(), NAMES)[1] == []
    (problem,) = bandwidth.verdict(measured(wrong=3), NAMES)[1]
    assert "all_reduce of 1024 bytes: 3 values are wrong" in problem


def test_ranks_are_called_by_their_node_and_number_where_nodes_have_several():
    nodes = {0: "a", 1: "b", 2: "b", 3: "c"}
    assert bandwidth.names(measured(), nodes) == ["a.0", "b.1", "b.2", "c.3"]
    assert bandwidth.names(measured(), dict(enumerate(NAMES))) == NAMES


def test_the_table_has_the_columns_of_nccl_tests():
    (_, matrix), (_, collectives) = bandwidth.tables(measured(), NAMES)
    assert [column.header for column in matrix.columns][1:] == NAMES
    assert [column.header for column in collectives.columns] == [*bandwidth.COLUMNS]


@pytest.mark.parametrize(("gbit_s", "text"), [(0.94, "0.940"), (9.4, "9.40"), (123.4, "123")])
def test_a_rate_has_three_digits(gbit_s, text):
    assert bandwidth.rate(gbit_s) == text
