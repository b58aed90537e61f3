"""Nodes of several workers: in two levels each link carries every gradient once."""

from tests.benchmarks import node_levels

NODES, WORKERS = 2, 2


def test_a_link_carries_what_it_would_with_one_worker_on_each_node(other_cluster):
    other_cluster("--nodes", str(NODES))
    rows = node_levels.table("", node_levels.on_testbed(NODES, WORKERS, 1), NODES)
    one, two = ([float(row[3]), row[4]] for row in rows if row[0].startswith("bytes"))
    assert two[1] == "met", rows
    assert 1.48 < one[0] < 1.54  # 2 (N-1)/N with N = 4 workers, of 2 (m-1)/m with m = 2 nodes
