"""Speed-up is relative to one measured run, the same for all runs that did the same work."""

import pytest

from muster.writing import write_json
from tests.train.report.studies import COURSES, courses, table_of, unequal
from train.report.data import scaling
from train.report.data.frames import records
from train.report.data.subject import read_subject


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
        # if the batch per worker is set, each batch has its own base
        ([{"workers": workers, "local_batch_size": part}
          for workers in (1, 2, 4) for part in (16, 32)],
         {f"batch {part} per worker, 1 worker" for part in (16, 32)},
         {f"batch {part} per worker" for part in (16, 32)}),
        # a batch that was set per worker counts, even if 8 on two workers makes the 16 of one
        ([{"workers": workers, "batch_size": part * workers, "local_batch_size": part}
          for workers, part in ((1, 8), (1, 16), (2, 8))],
         {"batch 8 per worker, 1 worker"}, {"batch 8 per worker"}),
        # the fastest of several runs on the fewest workers
        ([{"sync": sync, "workers": workers, "step_s": step_s / workers}
          for workers in (2, 4) for sync, step_s in (("gather_scatter", 0.9), ("ddp", 0.3))],
         {"ddp, 2 workers"}, {"gather_scatter", "ddp"}),
        # a named entry with a list of values: each value is a series
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


def test_speedup_base_is_same_for_same_work_of_any_name(tmp_path):
    """The courses' tasks, under their names, are all compared with one base."""
    names = {"single": "Task 1", "3": "Task 3", "2a": "Task 2a", "2b": "Task 2b"}
    table = table_of(tmp_path, {key: COURSES[key] | {"title": one} for key, one in names.items()})
    assert list(table["base"].unique()) == ["Task 1"]
    assert list(table["run"]) == list(names.values())  # in the order of the study
    assert records(table)[0]["speedup"] is None  # no run is compared with itself
    assert list(table["speedup"][1:]) == pytest.approx([3, 0.5, 1.5])
