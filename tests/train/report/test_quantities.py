"""What belongs to a number in a report: its interval, its unit and the run it is relative to."""

import pytest
from scipy import stats

from tests.train.report.folders import step, subject_of
from train.report.data import quantities, scaling
from train.report.data.frames import frame, records
from train.report.data.reader import read_run
from train.report.pages import page, sections, verdict


def test_interval_is_students_t():
    values = [0.11, 0.12, 0.1, 0.14, 0.13]
    found = quantities.estimate(values)
    wanted = stats.t.interval(0.95, 4, loc=0.12, scale=stats.sem(values))
    assert (found["low_s"], found["high_s"]) == pytest.approx(wanted)
    assert (found["mean_s"], found["median_s"]) == (pytest.approx(0.12), 0.12)
    assert quantities.estimate([None, float("nan"), "x", True]) == {}


@pytest.mark.parametrize("values", [[3.0], [0.1, 0.11, 0.12], [0.1, 0.1, 0.1, 5.0]])
def test_no_interval_of_few_values_or_below_zero(values):
    found = quantities.estimate(values)
    assert found["mean_s"] > 0 and found["low_s"] is None is found["high_s"]


def test_seconds_of_table_share_unit_and_memory_is_mib():
    table = [{"eval_s": 0.6382, "high_s": 1.443, "peak_memory_bytes": 447 * 2**20}]
    columns = {column.name: column.cells for column in page.visible_columns(table)}
    assert columns == {"eval_s": ["0.6382"], "high_s": ["1.443"], "peak_memory_MiB": ["447"]}
    columns = [column.name for column in page.visible_columns([{"eval_s": 0.2, "low_s": 0.1}])]
    assert columns == ["eval_ms", "low_ms"]
    (_, least) = page.visible_columns([{"eval_s": 20.0, "sync_s": 8.6e-6}])
    assert least.cells == ["<0.0001"] and least.is_number


def test_no_speedup_is_shown_over_a_base_in_doubt(tmp_path):
    """A speed-up of 100 on two workers: the run on one was slowed. The data has the number."""
    subject = subject_of(
        tmp_path, {"sync": "single", "workers": 1, "step_s": 10.0}, {"step_s": 0.1}
    )
    (row,) = records(scaling.speedup(subject).dropna(subset=["speedup"]))
    assert row["speedup"] == pytest.approx(100) and "5000%" in row["doubt"]
    built = verdict.build(subject)
    assert "speedup" not in built.table or built.table["speedup"].isna().all()
    assert any("5000%" in detail for warning in built.warnings for detail in warning.details)
    parts = {part.name: part for part in sections.build(subject)}
    assert "speedup" not in parts and list(parts["throughput"].data) == ["speedup"]


def test_a_run_is_not_compared_with_itself():
    row = {"base": "a", "doubt": None, "efficiency": None, "speedup": None}
    rows = [row | {"run": "a"}, row | {"run": "b", "speedup": 1.5}]
    assert list(quantities.without_doubted(frame(rows))["base"]) == [None, "a"]


def test_a_base_whose_own_times_differ_widely_is_in_doubt():
    gains = frame([{"run": "b", "base": "a", "speedup": 1.5, "efficiency": 0.75}])
    uneven = {"run": "a", "mean_s": 1.0, "spread_s": 0.9}
    (doubt,) = quantities.with_doubts(gains, [uneven])["doubt"]
    assert doubt
    assert list(quantities.with_doubts(gains)["doubt"]) == [None]


@pytest.mark.parametrize(("name", "value"), [("step_s", -0.1), ("sync_s", 9.0), ("samples", -1)])
def test_impossible_value_becomes_a_note(tmp_path, name, value):
    rows = [step(n, **({name: value} if n == 3 else {})) for n in range(1, 6)]
    (entry,) = subject_of(tmp_path, {"rows": rows, "workers": 1}).entries
    run = read_run(entry.run.path)
    assert run.ranks[0]["step"][2][name] is None and run.ranks[0]["step"][2]["loss"] == 1 / 3
    assert [name in note for note in run.notes] == [True]
