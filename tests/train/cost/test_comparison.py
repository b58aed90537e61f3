"""Predicted beside measured: of one experiment, for every mode, on any number of workers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import UsageError
from muster.run_files import METRICS
from tests.train.cost import made
from tests.train.report.folders import make_run, step
from train.cost.algorithms import all_gather
from train.cost.comparison import compare
from train.cost.fit import ComputeFit, fit_bench
from train.cost.measured_runs import read, read_all
from train.cost.predict import FURTHER, MODES, ROW_BYTES, predict
from train.report.data import tables
from train.report.data.subject import read_subject

BENCH = fit_bench(made.bench(), "bench")
COMPUTE = ComputeFit(0.01, 0.03, 0.0, 2 / 3, 1, (4,))
MIB = 2**20


@given(
    st.sampled_from([*MODES, *FURTHER]),
    st.integers(2, 1024),
    st.integers(1, 64),
    st.integers(1, 200),
)
def test_predictions_grow_with_workers_samples_and_bytes(mode, workers, samples, mib):
    def seconds(workers, samples, mib):
        return predict(mode, workers, samples, COMPUTE, [mib * MIB] * 3, BENCH).step_s

    base = seconds(workers, samples, mib)
    assert base <= seconds(workers, samples, mib + 1)
    assert base <= seconds(workers, samples + 1, mib) * (1 + 1e-9)
    assert base <= seconds(workers + 1, samples, mib) * (1 + 1e-9)


@given(st.integers(2, 1024), st.integers(1, 64))
def test_the_modes_stand_in_their_order(workers, samples):
    made_by = {
        mode: predict(mode, workers, samples, COMPUTE, [10 * MIB] * 4, BENCH).step_s
        for mode in (*MODES, *FURTHER)
    }
    assert made_by["ddp_fp16"] <= made_by["ddp"] <= made_by["all_reduce"] + row_s(workers)
    assert made_by["all_reduce"] <= made_by["gather_scatter"] * (1 + 1e-9) or workers == 2
    assert made_by["accelerate"] == made_by["ddp"]


def test_what_overlaps_does_not_vanish():
    plain = predict("all_reduce", 4, 4, COMPUTE, [10 * MIB] * 4, BENCH)
    hidden = predict("ddp", 4, 4, COMPUTE, [10 * MIB] * 4, BENCH)
    assert hidden.hidden_s == pytest.approx(0.03 * 4 * 2 / 3 * 3 / 4)
    assert hidden.sync_s + hidden.hidden_s == pytest.approx(plain.sync_s + row_s(4))


def row_s(workers):
    """What DDP tells apart from its gradients, and our own modes tell with their flags."""
    return all_gather(ROW_BYTES, workers).latency_s(BENCH.of("all_gather").link)


def test_a_study_is_compared_cell_by_cell(tmp_path):
    made.run(tmp_path / "a", "all_reduce", 4)
    made.run(tmp_path / "b", "gather_scatter", 4, sync_s=2.05, step_s=2.18)
    made.run(tmp_path / "c", "single", 1, local_samples=16, sync_s=0.0, step_s=0.131)
    made.run(tmp_path / "broken", "all_reduce", 4)
    cells = [{"run_dir": name, "state": "done"} for name in "abc"]
    cells.append({"run_dir": "broken", "state": "failed"})
    (tmp_path / "study.json").write_text(json.dumps({"name": "s", "cells": cells}))
    runs = read_all(tmp_path)
    assert [run.name for run in runs] == ["a", "b", "c"]
    outcome = compare(runs, BENCH, [1024])
    assert outcome.gradient_bytes == 40_000_000 and outcome.buckets == 2
    cell = outcome.cell("all_reduce", 4)
    assert cell is not None and cell.measured_s == pytest.approx(0.631)  # not the first step's 99 s
    assert cell.measured_sync_s == pytest.approx(0.5)
    assert cell.predicted.compute_s == pytest.approx(0.131)
    ring_s = 1.5 * 40e6 / 117e6 + 2 * 6 * 100e-6
    assert cell.predicted.sync_s == pytest.approx(ring_s + 9 * 100e-6, rel=1e-3)
    assert cell.error == pytest.approx(cell.predicted.step_s / 0.631 - 1)
    alone = outcome.cell("single", 1)
    assert alone is not None and alone.predicted.sync_s == 0 and alone.measured_s is not None
    assert outcome.cell("single", 4) is None
    far = outcome.cell("ddp_fp16", 1024)
    assert far is not None and far.measured_s is None
    assert any("global batch grows" in line for line in outcome.assumptions)


def test_seconds_are_those_that_a_report_of_the_run_has(tmp_path):
    """One run, one measured mean: ranks that differ and a last batch that is not full included."""
    rows = {
        rank: [
            step(n, rank, samples=10 if n == 6 else 64, local_samples=5 if n == 6 else 32,
                 step_s=0.1 * n + (0.03 if (n + rank) % 2 else 0.0))
            for n in range(1, 7)
        ]
        for rank in (0, 1)
    }  # fmt: skip
    folder = make_run(tmp_path / "run", sync="all_reduce", rows=rows)
    (row,) = tables.seconds(read_subject([folder])).rows
    run = read(folder)
    assert run is not None and run.step_s == pytest.approx(row["mean_s"])
    (cell,) = [one for one in compare([run], BENCH, []).cells if one.measured_s]
    assert cell.measured_s == pytest.approx(row["mean_s"])
    assert cell.predicted.samples == pytest.approx((4 * 32 + 5) / 5)


def test_a_slow_rank_is_not_charged_to_the_network(tmp_path):
    run = read(made.run(tmp_path / "a", "all_reduce", 4, slow_s=0.4))
    assert run is not None
    assert run.sync_s == pytest.approx(0.5)
    assert run.imbalance_s == pytest.approx(0.4 * 3 / 4)
    cell = compare([run], BENCH, []).cell("all_reduce", 4)
    assert cell is not None and cell.predicted.compute_s == pytest.approx(0.531)


def test_runs_with_other_settings_are_left_out_and_said(tmp_path):
    for name, mode in (("a", "all_reduce"), ("b", "gather_scatter")):
        made.run(tmp_path / name, mode, 4)
    made.run(tmp_path / "c", "all_reduce", 4, precision="bf16")
    outcome = compare(read_all(tmp_path), BENCH, [])
    assert [run.name for run in outcome.runs] == ["a", "b"]
    assert any(line.startswith("1 of 3 runs have other settings") for line in outcome.assumptions)


def test_runs_on_links_of_another_rate_are_another_experiment(tmp_path):
    cells = []
    for name, mode, rate in (("a", "ddp", 1), ("b", "all_reduce", 1), ("c", "ddp", 10)):
        made.run(tmp_path / name, mode, 4)
        settings = {"--sync": mode, "rate": f"{rate}gbit", "seed": name}
        cells.append({"run_dir": name, "state": "done", "settings": settings})
    (tmp_path / "study.json").write_text(json.dumps({"cells": cells}))
    outcome = compare(read_all(tmp_path), BENCH, [])
    assert [run.name for run in outcome.runs] == ["a", "b"]
    assert "rate 1gbit" in outcome.assumptions[0]


def test_weak_scaling_is_one_experiment(tmp_path):
    for workers in (2, 4):
        made.run(tmp_path / str(workers), "ddp", workers, batch_size=4 * workers)
        made.run(tmp_path / f"ar{workers}", "all_reduce", workers, batch_size=4 * workers)
    outcome = compare(read_all(tmp_path), BENCH, [])
    assert len(outcome.runs) == 4 and "samples per worker 4" in outcome.assumptions[0]


def test_where_every_run_overlaps_the_backward_pass_is_a_guess_and_said(tmp_path):
    made.run(tmp_path / "a", "ddp", 4, forward_s=0.1, backward_s=0.9)
    outcome = compare(read_all(tmp_path), BENCH, [])
    assert outcome.compute.backward_share == pytest.approx(0.2 / 0.301)
    assert any("2 times the forward pass" in line for line in outcome.assumptions)


def test_recorded_collectives_are_the_buckets(tmp_path):
    folder = made.run(tmp_path / "a", "all_reduce", 2, bucket_mb=0.0)
    path = METRICS.path(folder, rank=0)
    one = ["all_reduce", [10], "float32", 4_000_000]
    entry = {"kind": "collectives", "step": 1, "rank": 0, "collectives": [one] * 10}
    path.write_text(path.read_text() + json.dumps(entry) + '\n{"kind": "st')  # half a line
    run = read(folder)
    assert run is not None and run.buckets_bytes == (4_000_000,) * 10


def test_what_older_versions_and_lost_ranks_leave_is_read_or_passed_over(tmp_path):
    folder = made.run(tmp_path / "a", "all_reduce", 4)
    METRICS.path(folder, rank=3).unlink()
    run = read(folder)
    assert run is not None and run.workers == 4
    assert run.notes == ("a: records of 3 of 4 workers",)
    path = METRICS.path(folder, rank=0)
    path.write_text('{"kind": "step", "step": 1}\n[]\n7\n')
    assert read(folder) is None


def test_one_worker_alone_says_nothing_of_bytes(tmp_path):
    made.run(tmp_path / "a", "single", 1)
    with pytest.raises(UsageError, match="two workers or more"):
        compare(read_all(tmp_path), BENCH, [])


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no run with two steps"):
        read_all(tmp_path)
