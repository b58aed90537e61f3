"""Effects of more workers: BSC's table (devices, batch, accuracy, time, speed-up) and charts."""

from pathlib import Path

import pytest

from muster.writing import write_json
from tests.train.report.folders import cell, evaluation, make_run, make_study, step, subject_of
from train.report.data import over_workers
from train.report.data.frames import records
from train.report.data.subject import Subject, read_subject
from train.report.pages import sections, verdict

MIB = 2**20
# Devices, batch per device, seconds per step; there is no run with 128 on one device.
ROWS = ((1, 256, 1.0), (2, 256, 1.25), (8, 256, 1.6), (8, 128, 0.8), (16, 128, 1.0))


def emotion(path: Path) -> Subject:
    cells = []
    for workers, local, step_s in ROWS:
        name, size = f"{workers}-{local}", workers * local
        parts = {"predict_s": 0.3, "metric_s": 0.1, "sync_s": 0.05}
        scores = evaluation(5, accuracy_val=local / 1000, accuracy_test=local / 2000) | parts
        rows = [step(n, samples=size, step_s=9.0 if n == 1 else step_s) for n in range(1, 6)]
        folder = make_run(
            path / "runs" / name, workers=workers, rows={0: rows}, more=[scores], task="emotion",
            batch_size=None, local_batch_size=local, precision="fp16", sync="accelerate",
        )  # fmt: skip
        write_json(folder / "summary.json", {"world_size": workers, "train_samples": 16_000})
        for rank in range(workers):
            end = {"rank": rank, "cause": "done", "peak_memory_bytes": (100 + rank) * MIB}
            write_json(folder / "exits" / f"rank_{rank:05}.json", end)
        cells.append(cell(name, nodes=workers) | {"name": "Emotion"})
    return read_subject([make_study(path, cells)])


def test_worker_table_has_accuracy_time_and_speedup_over_base(tmp_path):
    rows = records(over_workers.training(emotion(tmp_path)))
    assert [(row["workers"], row["batch_of_each"]) for row in rows] == [one[:2] for one in ROWS]
    for row, (workers, local, step_s) in zip(rows, ROWS, strict=True):
        rate = workers * local / step_s
        assert row["epoch_s"] == pytest.approx(16_000 / rate)
        assert row["train_s"] == pytest.approx(5 * step_s)  # the first step counts like the others
        assert row["accuracy_val"] == local / 1000 and row["accuracy_test"] == local / 2000
    # over one device with the same batch; 128 has no such run, so the one with 256 is used
    assert rows[0]["speedup"] is None  # it is the base
    assert [row["speedup"] for row in rows[1:3]] == pytest.approx([2 / 1.25, 8 / 1.6])
    assert [row["speedup"] for row in rows[3:]] == pytest.approx([1024 / 0.8 / 256, 2048 / 256])
    assert {row["base"] for row in rows} == {"Emotion, batch 256 per worker, 1 worker"}


def test_one_device_has_no_speedup_over_itself(tmp_path):
    one, other = {"workers": 1, "local_batch_size": 8}, {"workers": 1, "local_batch_size": 16}
    rows = records(over_workers.training(subject_of(tmp_path, one, other | {"step_s": 0.3})))
    assert [row["speedup"] for row in rows] == [None, None]
    assert all(row["base"] == row["run"] for row in rows)


def test_each_figure_is_a_chart_over_workers_of_its_own(tmp_path):
    parts = sections.build(emotion(tmp_path))
    charts = [name for part in parts for name in part.figures]
    wanted = "epoch_time throughput throughput_per_device speedup evaluation memory"
    assert set(wanted.split()) <= set(charts) and len(charts) == len(set(charts))
    assert "metric_time" not in charts
    assert [part.title for part in parts[:2]] == ["Training", "What was run"]


def test_parts_of_an_evaluation_are_charts_where_runs_only_evaluate(tmp_path):
    made = evaluation(0, accuracy=0.5) | {"predict_s": 0.4, "metric_s": 0.1, "sync_s": 0.1}
    runs = ({"workers": n, "epochs": 0, "sync": "ddp", "rows": [made]} for n in (1, 2))
    (part,) = [
        one for one in sections.build(subject_of(tmp_path, *runs)) if one.name == "evaluation"
    ]
    wanted = "evaluation evaluation_per_device evaluation_speedup prediction_time metric_time"
    assert {*wanted.split(), "broadcast_time"} == set(part.figures)


def test_an_evaluations_speedup_is_over_the_fewest_workers_of_its_series(tmp_path):
    table = records(over_workers.evaluation(emotion(tmp_path)))
    of_256 = [row for row in table if "256" in row["series"]]
    assert [row["workers"] for row in of_256] == [1, 2, 8]
    assert of_256[0]["speedup"] is None  # it is the base
    assert [row["speedup"] for row in of_256[1:]] == pytest.approx([1, 1])
    assert [row["samples_per_s_per_worker"] for row in of_256] == pytest.approx([200, 100, 25])


def test_memory_is_that_of_the_worker_that_had_most(tmp_path):
    rows = records(over_workers.memory(emotion(tmp_path)))
    assert [row["peak_memory_bytes"] for row in rows] == [(99 + one[0]) * MIB for one in ROWS]
    assert {row["peak_gpu_memory_bytes"] for row in rows} == {None}


def test_an_evaluation_that_gains_more_than_its_workers_is_warned_of(tmp_path):
    """Two workers are 2.5 times as fast as one, so one of the two runs was disturbed."""
    made = evaluation(0, accuracy=0.5)
    runs = {
        f"on {workers}": {"workers": workers, "epochs": 0, "rows": [made | {"eval_s": eval_s}]}
        for workers, eval_s in ((1, 1.0), (2, 0.4))
    }
    (warning,) = verdict.build(subject_of(tmp_path, **runs)).warnings
    (detail,) = warning.details
    assert "2 workers" in detail and "125%" in detail
