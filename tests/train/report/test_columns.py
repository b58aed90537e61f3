"""The columns that a study names, or else plain rules, decide what a report compares."""

from pathlib import Path
from typing import Any

import pytest

from tests.train.report.folders import cell, evaluation, make_run, make_study, step, subject_of
from train.report.data import over_workers, scaling, tables
from train.report.data.frames import records
from train.report.data.subject import Subject, read_subject
from train.report.pages import provenance, sections


def study_of(path: Path, runs: list[dict[str, Any]], **roles: Any) -> Subject:
    cells = []
    for number, raw in enumerate(runs):
        title, of_cell = raw.pop("title", ""), raw.pop("of_cell", {})
        make_run(path / "runs" / str(number), **raw)
        known = {"nodes": raw.get("workers", 2), "settings": of_cell}
        cells.append(cell(str(number), **known) | {"name": title})
    return read_subject([make_study(path, cells, **roles)])


def names(subject: Subject) -> list[str]:
    return [entry.name for entry in subject.entries]


SIZES = [{"sync": sync, "bucket_mb": size} for sync in ("ddp", "all_reduce") for size in (1.0, 4.0)]


def test_rows_and_lines_are_of_the_columns_that_the_study_names(tmp_path):
    runs = [dict(run) | {"lr": 0.1} for run in SIZES]
    subject = study_of(tmp_path, runs, x="bucket_mb", series=["sync"])
    assert {entry.series for entry in subject.entries} == {"ddp", "all_reduce"}
    assert names(subject)[:2] == ["all_reduce, bucket mb 1", "all_reduce, bucket mb 4"]
    table = over_workers.training(subject)
    assert list(table["bucket_mb"]) == [1.0, 4.0, 1.0, 4.0]
    part = next(one for one in sections.build(subject) if one.name == "throughput")
    assert "throughput_per_device" in part.figures  # a line over x


def test_x_of_words_is_drawn_as_bars(tmp_path):
    runs = [{"precision": one, "step_s": step_s} for one, step_s in (("fp32", 0.2), ("bf16", 0.1))]
    subject = study_of(tmp_path, runs, x="precision", series=["sync"])
    part = next(one for one in sections.build(subject) if one.name == "throughput")
    assert list(part.figures) == ["throughput"]


def test_batch_that_grows_with_x_is_one_series(tmp_path):
    runs = [{"workers": n, "batch_size": 16 * n} for n in (1, 2, 4)]
    subject = study_of(tmp_path, runs, x="workers", series=["sync"])
    assert {entry.series for entry in subject.entries} == {"ddp"}


def test_runs_that_differ_beyond_x_and_series_are_no_repeats(tmp_path):
    runs = [{"lr": lr, "seed": seed} for lr in (0.1, 0.2) for seed in (1, 2)]
    subject = study_of(tmp_path, runs, x="workers", series=["sync"])
    assert names(subject) == [f"lr {lr} #{n}" for lr in (0.1, 0.2) for n in (1, 2)]


def test_seed_in_series_is_no_repeat(tmp_path):
    subject = study_of(tmp_path, [{"seed": 1}, {"seed": 2}], series=["seed"])
    assert names(subject) == ["seed 1", "seed 2"]


def test_column_that_no_run_has_is_noted_with_what_is_known(tmp_path):
    subject = study_of(tmp_path, [{}, {"sync": "all_reduce"}], x="height", series=["sync"])
    (note,) = [one for one in provenance.notes(subject) if "height" in one]
    assert "batch_of_each" in note
    assert names(subject) == ["all_reduce", "ddp"]


@pytest.mark.parametrize("roles", [{"x": 3}, {"series": "sync"}, {"reference": ["single"]}])
def test_damaged_roles_are_noted_and_left_out(tmp_path, roles):
    subject = study_of(tmp_path, [{}, {"sync": "all_reduce"}], **roles)
    (name,) = roles
    assert [one.startswith(f"study.json: {name} ") for one in subject.notes] == [True]
    assert names(subject) == ["all_reduce", "ddp"]


def test_losses_and_speedups_are_against_the_reference_of_the_study(tmp_path):
    """Even if all other settings differ. Losses prefer a run on the same number of workers."""
    runs = [
        {"title": "Even", "workers": n, "batch_size": 32 * n, "lr": 0.1,
         "rows": [step(k, samples=32 * n, loss=float(n)) for k in range(1, 9)]} for n in (1, 2)
    ]  # fmt: skip
    rows = [step(k, samples=64, loss=2.5) for k in range(1, 9)]
    runs += [{"title": "Other", "workers": 2, "batch_size": 64, "lr": 0.3, "rows": rows}]
    subject = study_of(tmp_path, runs, series=["name"], reference={"name": "Even"})
    found = {row["run"]: row for row in records(tables.first_losses(subject))}
    assert found["Other"]["reference"] == "Even, 2 workers"
    assert found["Other"]["largest_difference"] == pytest.approx(0.5)
    assert set(scaling.speedup(subject)["base"]) == {"Even, 1 worker"}


def test_speedups_of_evaluations_are_over_the_reference_of_the_study(tmp_path):
    made = {1: evaluation(8) | {"eval_s": 4.0}, 2: evaluation(8) | {"eval_s": 2.5}}
    runs = [{"title": "One", "workers": 1, "sync": "single", "rows": [made[1]]}]
    runs += [{"title": "Two", "workers": 2, "rows": [made[2]]}]
    subject = study_of(tmp_path, runs, series=["name"], reference={"name": "One"})
    table = {row["series"]: row for row in records(over_workers.evaluation(subject))}
    assert {row["base"] for row in table.values()} == {"One"}
    assert table["One"]["speedup"] is None
    assert table["Two"]["speedup"] == pytest.approx(1.6)


def test_reference_that_is_missing_is_noted(tmp_path):
    subject = study_of(tmp_path, [{}], reference={"sync": "single"})
    assert ["sync single" in note for note in subject.notes] == [True]


def test_values_of_a_sweep_tell_runs_of_any_program_apart(tmp_path):
    cells = []
    for lr in ("1e-4", "3e-4"):
        folder = make_run(tmp_path / "runs" / lr, rows={}, end={})
        (folder / "config.yaml").write_text("launcher: local\nnodes: '2'\n")
        cells.append(cell(lr, settings={"lr": lr}))
    make_study(tmp_path, cells)
    (tmp_path / "study.json").rename(tmp_path / "sweep.json")
    assert names(read_subject([tmp_path])) == ["lr 1e-4", "lr 3e-4"]


def test_plain_runs_of_other_learning_rates_are_not_compared(tmp_path):
    subject = subject_of(tmp_path, {"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1, "sync": "all_reduce"})
    rows = {row["run"]: row["reference"] for row in records(tables.first_losses(subject))}
    assert rows == {
        "ddp, lr 0.1": "all_reduce, lr 0.1", "ddp, lr 0.2": None, "all_reduce, lr 0.1": None,
    }  # fmt: skip
