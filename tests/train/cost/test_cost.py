"""What was put in comes out: links from a bench's times, and steps from a run's records."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.writing import write_json
from tests.commands import call
from tests.train.report.folders import cell, collectives, make_run, make_study, step
from tests.train.workers import REPOSITORY
from train.cost.__main__ import predictions
from train.cost.link_fit import OPERATIONS, Link, fit, load, read_bench
from train.cost.predict import MODES, Steps, predict
from train.report.data import scaling, tables
from train.report.data.subject import read_subject

SIZES = tuple(1024 * 4**power for power in range(9))
LINK = Link(100e-6, 1 / 117e6)
LINKS = dict.fromkeys(OPERATIONS, LINK)
MIB = 2**20


def times(operation: str, link: Link, workers: int = 4) -> list[float]:
    return [sum(link.shares_s(*load(operation, size, workers))) for size in SIZES]


def bench(path: Path, operations: tuple[str, ...] = OPERATIONS, **changes: Any) -> Path:
    """A collectives.json of links that do exactly what the model says."""
    rows = [
        {"name": name, "bytes": size, "time_us": seconds * 1e6, "time_us_min": seconds * 1e6}
        for name in operations
        for size, seconds in zip(SIZES, times(name, LINK), strict=True)
    ]
    write_json(path, {"hosts": ["a", "b", "c", "d"], "collectives": rows} | changes)
    return path


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("power", [1, 2])
def test_latency_and_bandwidth_are_recovered_through_noise(operation, power):
    link, draws = Link(2e-4, 1e-8, power), random.Random(1)
    exact = times(operation, link)
    same = fit(operation, list(zip(SIZES, exact, exact, strict=True)), 4)
    assert same.power == power
    assert (same.alpha_s, same.byte_s) == pytest.approx((2e-4, 1e-8))
    noisy = [seconds * draws.uniform(0.95, 1.05) for seconds in exact]
    found = fit(operation, list(zip(SIZES, noisy, noisy, strict=True)), 4)
    assert found.alpha_s == pytest.approx(2e-4, rel=0.15)
    assert found.byte_s == pytest.approx(1e-8, rel=0.15)


def test_a_point_whose_rounds_differ_counts_less():
    exact = times("gather", LINK)
    rows = list(zip(SIZES, exact, exact, strict=True))
    rows[0] = (rows[0][0], exact[0] * 3, exact[0] * 0.9)
    assert fit("gather", rows, 4).alpha_s == pytest.approx(LINK.alpha_s, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"hosts": 3}, "not a collectives.json"), ({"collectives": [{}]}, "not a collectives.json"),
     ({"hosts": ["a"]}, "1 workers"), ({"collectives": []}, "no collective of two sizes")],
)  # fmt: skip
def test_a_bench_that_tells_nothing_is_refused_by_its_name(tmp_path, changes, message):
    with pytest.raises(UsageError, match=rf"here\.json: .*{message}"):
        read_bench(bench(tmp_path / "here.json", **changes))


def seconds(mode: str, workers: int, mib: float, *, buckets: int = 3, overlaps: bool = False):
    steps = Steps(0.1, 0.06, (int(mib * MIB),) * buckets, is_mixed=False)
    return predict(mode, workers, steps, LINKS, overlaps=overlaps)


@given(
    st.sampled_from(sorted(MODES.keys() - {"single"})), st.integers(2, 64), st.integers(1, 200),
    st.booleans(),
)  # fmt: skip
def test_more_bytes_or_workers_never_take_less(mode, workers, mib, overlaps):
    base = seconds(mode, workers, mib, overlaps=overlaps).step_s
    assert base <= seconds(mode, workers, mib + 1, overlaps=overlaps).step_s
    assert base <= seconds(mode, workers + 1, mib, overlaps=overlaps).step_s * (1 + 1e-9)


def test_what_overlaps_does_not_vanish():
    plain = seconds("all_reduce", 4, 10)
    for mode in ("ddp", "accelerate"):
        hidden = seconds(mode, 4, 10)
        assert hidden.hidden_s == pytest.approx(0.06 * 2 / 3)
        assert hidden.step_s + hidden.hidden_s == pytest.approx(plain.step_s)
    half = seconds("zero1", 4, 1, overlaps=True)  # the other half comes after the step
    assert half.step_s > seconds("all_reduce", 4, 1, overlaps=True).step_s + 0.01
    assert seconds("ddp", 4, 10, buckets=1).hidden_s == 0
    root = seconds("gather_scatter", 4, 10, overlaps=True)
    assert root.step_s < seconds("gather_scatter", 4, 10).step_s


def run(path: Path, sync: str, workers: int, **changes: Any) -> Path:
    """Ranks compute 0.131 s in steps of 0.631 s; rank 0 sends 40 MB in two collectives."""
    payload = 40_000_000 * {"gather_scatter": 2, "single": 0}.get(sync, 1)
    values = {"samples": 16, "data_s": 0.001, "forward_s": 0.04, "backward_s": 0.08,
              "sync_s": 0.5, "optimizer_s": 0.01, "step_s": 0.631}  # fmt: skip
    values |= {"payload_bytes": payload, **changes.pop("values", {})}
    rows = {
        rank: [step(n, rank, **values | changes.get(f"rank{rank}", {})) for n in range(1, 6)]
        for rank in range(workers)
    }
    of_run = {name: value for name, value in changes.items() if not name.startswith("rank")}
    sent = ["all_reduce", [5_000_000], "float32", 20_000_000]
    more = [collectives() | {"collectives": [sent, sent]}]
    return make_run(path, sync=sync, workers=workers, rows=rows, more=more, **of_run)


def rows_of(*paths: Path) -> dict[str, dict[str, Any]]:
    return {row["folders"][0]: row for row in predictions(read_subject(list(paths)), LINKS)}


def test_a_step_is_its_computing_and_the_sync_over_the_link(tmp_path):
    path = run(tmp_path / "a", "all_reduce", 4, overlap=False)
    row = rows_of(path)["a"]
    ring_s = 1.5 * 40e6 / 117e6 + 2 * 6 * 100e-6 + 6 * 100e-6  # and the flags of all ranks
    assert row["predicted_s"] == pytest.approx(0.131 + ring_s)
    (measured,) = tables.records(tables.seconds(read_subject([path])))
    assert row["measured_s"] == measured["mean_s"] == pytest.approx(0.631)


def test_a_slow_rank_is_not_charged_to_the_network(tmp_path):
    slow = {"forward_s": 0.44, "sync_s": 0.1}
    path = run(tmp_path / "a", "all_reduce", 4, overlap=False, rank0=slow)
    assert rows_of(path)["a"]["computing_s"] == pytest.approx(0.531)


def test_computing_is_of_runs_that_send_after_it_where_there_are_some(tmp_path):
    slowed = {"backward_s": 0.3, "comm_s": 0.1, "overlapped_s": 0.1}
    paths = [
        run(tmp_path / "plain", "all_reduce", 4, overlap=False),
        run(tmp_path / "ddp", "ddp", 4, values=slowed),
    ]
    found = rows_of(*paths)
    assert found["ddp"]["computing_s"] == found["plain"]["computing_s"] == pytest.approx(0.131)


def test_only_runs_of_one_experiment_whose_mode_has_a_model_are_predicted(tmp_path):
    paths = [
        run(tmp_path / name, sync, 2, **more)
        for name, sync, more in (
            ("a", "all_reduce", {}), ("b", "gather_scatter", {}), ("fsdp", "fsdp", {}),
            ("other", "all_reduce", {"max_seq_length": 8}), ("split", "ddp", {"split": "auto"}),
            ("less", "ddp", {"compress": "fp16"}),
        )
    ]  # fmt: skip
    assert set(rows_of(*paths)) == {"a", "b"}
    bare = {"all_reduce": LINK}  # of a bench that left out the others
    assert len(predictions(read_subject(paths), bare)) == 1


def test_the_speedup_of_a_study_has_what_the_command_wrote(tmp_path):
    study = make_study(tmp_path / "study", [cell("one", nodes=1), cell("four", nodes=4)])
    alone = {"sync_s": 0.0, "step_s": 0.131}
    run(study / "runs" / "one", "single", 1, values=alone)
    run(study / "runs" / "four", "all_reduce", 4, overlap=False)
    done = cost(study, "--collectives", bench(tmp_path / "collectives.json"))
    assert done.returncode == 0, done.stderr
    assert "| all_reduce" in done.stdout and str(study / "prediction.json") in done.stdout
    facts = json.loads((study / "prediction.json").read_text())
    assert facts["links"]["all_reduce"]["alpha_s"] == pytest.approx(100e-6)
    found = {row["run"]: row for row in facts["seconds_per_iteration"]}
    (_, four) = tables.records(scaling.speedup(read_subject([study])))
    error = found[four["run"]]["predicted_s"] / 0.631 - 1
    assert abs(error) < 0.15 and four["predicted"] == pytest.approx(four["speedup"] / (1 + error))


def cost(*argv: object, cwd: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(REPOSITORY)}
    return call(sys.executable, "-m", "train.cost", *argv, cwd=cwd, env=env)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("nothing-here", "holds no run"),
        ("run --collectives missing.json", "missing.json: No such file"),
        ("run --collectives run/config.yaml", "config.yaml: not a collectives.json"),
        ("run --workers 8,1024", "--workers is gone"),
        ("run --link-mbit 1000", "--link-mbit is gone"),
    ],
)
def test_mistakes_are_told_in_a_line(tmp_path, argv, message):
    run(tmp_path / "run", "all_reduce", 2)
    bench(tmp_path / "bench.json")
    done = cost("--collectives", "bench.json", *argv.split(), cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr
