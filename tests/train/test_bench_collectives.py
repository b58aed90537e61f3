"""Every collective is timed and checked, in nccl-tests' terms, however the workers are started."""

import pytest
import torch
import torch.distributed as dist

from configs.settings.train import OPERATIONS, BenchConfig
from tests.launch.submit import submit
from tests.train.workers import assert_measured, finish, read_json, start
from train.bench_collectives import HEADER, line
from train.benchmarks import collectives
from train.distributed.rendezvous import Peers
from train.distributed.world import World

PARTED = {"gather", "scatter", "all_gather", "reduce_scatter"}
SHORT = ["--min-bytes", "1024", "--max-bytes", "4096", "--threads", "1"]


def test_sizes_grow_by_the_factor_up_to_max_bytes():
    assert BenchConfig(min_bytes=8, max_bytes=64, factor=2).sizes() == (8, 16, 32, 64)
    assert BenchConfig(min_bytes=1000, max_bytes=1000).sizes() == (1000,)
    assert all(size % 4 == 0 for size in BenchConfig(min_bytes=10, factor=1.3).sizes())


@pytest.mark.slow
def test_launcher_runs_the_bench_and_its_table_is_written(tmp_path):
    flags = ["--nodes", "3", "--program", "bench_collectives", *SHORT]
    code, out, err = submit(*flags, "--logs-dir", str(tmp_path))
    assert code == 0, err
    (run_dir,) = tmp_path.iterdir()
    assert run_dir.name.endswith("-bench_collectives-3x1")
    assert (
        "3 simulated nodes x 1 worker on this machine, bench_collectives ->" in out
        and HEADER in out.splitlines()
    )
    results = read_json(run_dir / "collectives.json")
    assert (
        results["backend"] == "gloo"
        and len(results["hosts"]) == 3
        and results["nodes"] == [0, 1, 2]
    )
    assert all(link["mtu_bytes"] > 1000 for link in results["links"].values())
    rows = results["collectives"]
    assert len({(row["name"], row["bytes"]) for row in rows}) == len(rows) == 7 * 2
    for row in rows:
        assert line(row) in out.splitlines()
        assert 0 < row["time_us_min"] <= row["time_us"] and row["bytes"] <= 4096
        assert_measured(row, 3, PARTED)
    assert (run_dir / "environment").is_dir() and not (run_dir / "metrics").exists()
    again = submit("--config", str(run_dir / "config.yaml"), "--nodes", "3", "--dry-run")
    assert "-m train.bench_collectives" in again[1] and "--max-bytes=4096" in again[1]


def test_bench_with_one_worker_is_refused(tmp_path):
    (ended,) = finish([start(["-m", "train.bench_collectives", "--logs-dir", str(tmp_path)])])
    assert ended[0] == 2 and "two or more" in ended[2]


@pytest.mark.parametrize("name", OPERATIONS)
def test_wrong_received_value_is_counted(name, monkeypatch):
    """One float that rank 0 receives is corrupted, although the collectives work correctly."""
    peers = Peers(World(), dist.HashStore(), [], torch.device("cpu"))
    monkeypatch.setattr(collectives, "_timed", lambda *_: 1e-3)
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda *_: None)
    real = collectives._build_case(name, 8, peers)
    results = [(want().clone(), want) for _, want in real.results]
    case = collectives._Case(lambda: None, results)
    monkeypatch.setattr(collectives, "_build_case", lambda *_: case)
    assert collectives.measure(name, 32, peers, collectives.THOROUGH)["wrong"] == 0
    results[0][0][3] += 1
    assert collectives.measure(name, 32, peers, collectives.THOROUGH)["wrong"] == 1
