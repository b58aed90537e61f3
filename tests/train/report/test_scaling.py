"""Speed-up is against one run that was measured, the same for all that did the same work."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from muster.writing import write_json
from tests.train.report.folders import cell, make_run, make_study, step
from train.report.data import scaling
from train.report.data.subject import read_subject
from train.report.data.tables import records


def table_of(path: Path, runs: dict[str, dict[str, Any]], **roles: Any) -> pd.DataFrame:
    """A study of these runs; what only a study knows of one stands in `of_bed` and `title`."""
    cells = []
    for name, raw in runs.items():
        known = {"settings": raw.pop("of_bed", {}), "name": raw.pop("title", "")}
        make_run(path / "runs" / name, **raw)
        cells.append(cell(name, nodes=raw.get("workers", 2)) | known)
    return scaling.speedup(read_subject([make_study(path, cells, **roles)]))


# As the assignments have it: two modes with a collective per parameter, ddp as it is.
COURSES = {
    "single": {"sync": "single", "workers": 1, "step_s": 0.3, "bucket_mb": 25.0},
    "2a": {"sync": "gather_scatter", "workers": 4, "step_s": 0.6, "bucket_mb": 0.0},
    "2b": {"sync": "all_reduce", "workers": 4, "step_s": 0.2, "bucket_mb": 0.0},
    "3": {"sync": "ddp", "workers": 4, "step_s": 0.1, "bucket_mb": 25.0},
}


def courses(path: Path) -> pd.DataFrame:
    return table_of(path, {name: dict(raw) for name, raw in COURSES.items()})


def unequal(path: Path) -> pd.DataFrame:
    """HetSeq's: a batch that grows, and another program on a node where `busy` is 1."""
    runs: dict[str, dict[str, Any]] = {}
    for workers, split, busy, step_s in (
        (1, "even", 0, 0.7), (2, "even", 0, 0.8), (2, "even", 1, 1.5), (2, "auto", 1, 1.1),
        (4, "even", 1, 2.4), (4, "auto", 1, 2.0),
    ):  # fmt: skip
        rows = [step(n, samples=32 * workers, step_s=step_s) for n in range(1, 9)]
        run = {"workers": workers, "rows": rows, "batch_size": 32 * workers, "split": split}
        runs[f"{workers}-{split}-{busy}"] = run | {"of_bed": {"busy": busy} if busy else {}}
    names_the_base = {"split": "even", "busy": None}
    return table_of(path, runs, series=["split", "busy"], reference=names_the_base)


def test_busy_nodes_are_measured_against_the_run_that_had_none(tmp_path):
    table = unequal(tmp_path)
    (base,) = table["base"].unique()
    assert "busy" not in base and "1 worker" in base
    rate = {row["run"]: row["samples_per_s"] for row in records(table)}
    for row in records(table[table["run"] != base]):
        assert row["speedup"] == pytest.approx(rate[row["run"]] / rate[base])
    at_four = {r["series"]: r["efficiency"] for r in records(table[table["workers"] == 4])}
    assert at_four["auto, busy 1"] > at_four["even, busy 1"]
    assert not any("None" in row["series"] for row in records(table))


NAMED = ((1, "even"), (2, "even"), (2, "auto"), (4, "even"), (4, "auto"))


@pytest.mark.parametrize(
    ("runs", "bases", "series"),
    [
        # where the batch of each worker is set, each has its own
        ([{"workers": workers, "local_batch_size": part}
          for workers in (1, 2, 4) for part in (16, 32)],
         {f"batch {part} a worker, 1 worker" for part in (16, 32)},
         {f"batch {part} a worker" for part in (16, 32)}),
        # one that was set of each worker, also where 8 on two workers makes the 16 of one
        ([{"workers": workers, "batch_size": part * workers, "local_batch_size": part}
          for workers, part in ((1, 8), (1, 16), (2, 8))],
         {"batch 8 a worker, 1 worker"}, {"batch 8 a worker"}),
        # of several on the fewest workers the fastest
        ([{"sync": sync, "workers": workers, "step_s": step_s / workers}
          for workers in (2, 4) for sync, step_s in (("gather_scatter", 0.9), ("ddp", 0.3))],
         {"ddp, 2 workers"}, {"gather_scatter", "ddp"}),
        # of a named entry with a list each of its values
        ([{"workers": workers, "split": split, "title": "DDP"} for workers, split in NAMED],
         {"DDP, even, 1 worker"}, {"DDP, even", "DDP, auto"}),
    ],
)  # fmt: skip
def test_runs_of_the_same_work_have_one_base(tmp_path, runs, bases, series):
    table = table_of(tmp_path, {str(number): dict(run) for number, run in enumerate(runs)})
    assert set(table["base"]) == bases and set(table["series"]) == series
    assert set(table["base_workers"]) == {min(run["workers"] for run in runs)}


def test_prediction_of_an_older_version_is_ignored(tmp_path):
    courses(tmp_path)
    facts = {"run": "3", "folders": ["3"], "predicted_s": 0.1, "measured_s": 0.1}
    write_json(tmp_path / "prediction.json", {"seconds_per_iteration": [facts]})
    subject = read_subject([tmp_path])
    assert "predicted" not in scaling.speedup(subject) and not subject.notes


def test_neither_names_nor_ways_to_send_part_what_does_the_same_work(tmp_path):
    """The courses' tasks by their names, against one base."""
    names = {"single": "Task 1", "3": "Task 3", "2a": "Task 2a", "2b": "Task 2b"}
    table = table_of(tmp_path, {key: COURSES[key] | {"title": one} for key, one in names.items()})
    assert list(table["base"].unique()) == ["Task 1"]
    assert list(table["run"]) == list(names.values())  # in the order of the study
    assert table["speedup"][0] is None  # no run is compared with itself
    assert list(table["speedup"][1:]) == pytest.approx([3, 0.5, 1.5])
