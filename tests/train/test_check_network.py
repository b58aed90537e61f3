"""The network between workers is measured, and the data received over it is checked."""

import pytest

from tests.train.workers import assert_measured, finish, free_port, read_json, start
from train.benchmarks.collectives import bus_factor
from train.benchmarks.network import rounds


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("max_sequential", [0, 99])
def test_rounds_have_every_pair_once_and_no_rank_twice(count, max_sequential):
    ranks = list(range(10, 10 + count))
    met = list(rounds(ranks, max_sequential))
    for together in met:
        busy = [rank for pair in together for rank in pair]
        assert len(busy) == len(set(busy))
    pairs = sorted(tuple(sorted(pair)) for together in met for pair in together)
    assert pairs == [(a, b) for a in ranks for b in ranks if a < b]
    if max_sequential:
        assert all(len(together) == 1 for together in met)


def test_bus_factors_are_those_of_nccl_tests():
    # in nccl-tests: doc/PERFORMANCE.md, src/gather.cu and src/scatter.cu
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_reduce", 2) == 1.0
    for name in ("all_gather", "reduce_scatter", "gather", "scatter"):
        assert bus_factor(name, 4) == 0.75
    assert bus_factor("broadcast", 4) == bus_factor("sendrecv", 4) == 1.0


@pytest.mark.slow
def test_network_of_three_workers_is_measured_without_wrong_values(tmp_path):
    port = free_port()
    argv = ["-m", "train.check_network", "--logs-dir", str(tmp_path), "--run-id", "net"]
    argv += ["--master-ip", "127.0.0.1", "--master-port", str(port), "--world-size", "3"]
    ended = finish([start([*argv, "--rank", str(rank), "--threads", "1"]) for rank in range(3)])
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    assert [out for _, out, _ in ended] == ["", "", ""]
    measured = read_json(tmp_path / "net" / "network.json")
    assert measured["backend"] == "gloo" and len(measured["hosts"]) == 3
    assert {row["name"] for row in measured["collectives"]} == {
        "broadcast", "gather", "scatter", "all_gather", "all_reduce"
    }  # fmt: skip
    for row in measured["collectives"]:
        assert_measured(row, 3, ("gather", "scatter", "all_gather"))
    assert read_json(tmp_path / "net" / "exits" / "rank_00002.json")["cause"] == "done"
    assert (tmp_path / "net" / "config.yaml").exists()
