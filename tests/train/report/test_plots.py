"""A figure shows the measured numbers, and no more than its table."""

import math
import re
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from tests.train.report.folders import evaluation, make_run, step, subject_of
from tests.train.report.studies import courses, unequal
from train.report.data import tables
from train.report.data.frames import frame, records
from train.report.data.subject import read_subject
from train.report.pages import drawing, plots, sections


@dataclass
class Bars:
    """The arguments of `plots.bars`: a bar for each row, in parts or side by side."""

    sizes: pd.DataFrame
    unit: str
    labels: Any = ()
    ends: Any = None
    fills: Any = ()
    beside: bool = False


@pytest.fixture
def as_values(monkeypatch):
    """Make functions of `plots` return the panels and bars that they would draw."""
    monkeypatch.setattr(
        plots, "lines", lambda rows, names=(): [panel for row in rows for panel in row]
    )
    monkeypatch.setattr(plots, "bars", lambda name, *given, **how: {name: Bars(*given, **how)})


def texts(svg: str) -> set[str]:
    """Return a figure's texts: matplotlib draws outlines, and adds each text as a comment."""
    return set(re.findall(r"<!-- (.*?) -->", svg))


NO_ENDS = {"low_s": None, "high_s": None}


def evaluations(*rows: tuple[float, float | None]):
    return frame(
        {"run": f"run {number}", "eval_s": value, "low_s": half and value - half,
         "high_s": half and value + half}
        for number, (value, half) in enumerate(rows)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "labels", "unit"),
    [
        ((0.2, 0.5), ["200 ms", "500 ms"], "milliseconds per evaluation"),
        ((0.2, 1.5), ["0.2 s", "1.5 s"], "seconds per evaluation"),
    ],
)
def test_times_of_a_figure_have_one_unit(as_values, seconds, labels, unit):
    bars = plots.evaluation(evaluations(*((value, None) for value in seconds)))["evaluation"]
    assert (bars.labels, bars.unit) == (labels, unit)
    size = 1000 if unit.startswith("milli") else 1
    assert list(bars.sizes.sum(axis=1)) == pytest.approx([size * value for value in seconds])


@pytest.mark.parametrize("study", [courses, unequal])
def test_every_point_of_the_speedup_was_measured(tmp_path, as_values, study):
    table = study(tmp_path)
    (panel,) = plots.speedup(table)["speedup"]
    assert (panel.x, panel.y, panel.by) == ("workers", "speedup", "series")
    measured = {row["run"]: row["speedup"] or 1.0 for row in records(table)}  # the base is at one
    drawn = {row["run"]: row["speedup"] for row in records(panel.table)}
    assert drawn == pytest.approx(measured)
    assert list(panel.table["workers"]) == list(table["workers"])
    few, most = table["workers"].min(), table["workers"].max()
    assert panel.ideal == ((few, 1), (most, most / few))
    (base,) = table["base"].unique()
    assert base in panel.title


@pytest.mark.parametrize(
    ("rows", "is_drawn"),
    [
        ([(1.0, None), (2.0, None)], False),
        ([(1.0, 0.1), (2.0, 0.1)], True),
        ([(1.0, 0.1), (2.0, None)], True),
    ],
)
def test_an_interval_is_named_only_where_one_is_drawn(rows, is_drawn):
    drawn = texts(plots.evaluation(evaluations(*rows))["evaluation"])
    assert any("95" in text for text in drawn) == is_drawn


def test_many_bars_are_several_figures_on_one_scale():
    """On paper, the type in a single figure of all bars would be too small to read."""
    figures = plots.evaluation(evaluations(*((float(number), None) for number in range(1, 41))))
    assert list(figures) == ["evaluation", "evaluation_2", "evaluation_3"]
    drawn = [texts(svg) for svg in figures.values()]
    of_bars = [sorted(int(text.split()[0]) for text in one if text.endswith(" s")) for one in drawn]
    assert of_bars == [[*range(1, 15)], [*range(15, 29)], [*range(29, 41)]]
    ticks = [{text for text in one if text.isdigit()} for one in drawn]
    assert ticks[0] and ticks[0] == ticks[1] == ticks[2]
    name = "a setting and its value " * 4  # in lines of 24 letters
    long = frame({"run": f"{name}{n}", "eval_s": 1.0 + n} | NO_ENDS for n in range(18))
    assert len(plots.evaluation(long)) == 3


def test_throughput_is_the_total_by_workers_and_precision(as_values):
    table = frame(
        {"run": f"{precision}, {workers}", "precision": precision, "workers": workers,
         "samples_per_s": rate}
        for workers, precision, rate in (
            (4, "bf16", 37875.2), (1, "fp32", 200.0), (4, "fp32", 812.34)
        )
    )  # fmt: skip
    sizes = plots.throughput(table)["throughput"].sizes
    assert list(sizes.index) == ["fp32, 1", "bf16, 4", "fp32, 4"]  # by workers
    assert sizes.to_dict("list") == {"fp32": [200, 0, 812.34], "bf16": [0, 37875.2, 0]}


def test_traffic_of_all_hosts_stands_beside_what_was_expected(as_values):
    """If a number of one host is unknown, so is the sum over all hosts."""
    rows = (("a", "sent", 1e6), ("a", "sent", 2e6), ("b", "sent", 4e6), ("b", "sent", None))
    rows += (("a", "received", 9e6),)  # left out: over all hosts, as much is received as sent
    table = frame(
        {"run": run, "direction": way, "expected_bytes": size, "observed_bytes": 5e6}
        for run, way, size in rows
    )
    bars = plots.traffic(table)["traffic"]
    expected, counted = (list(bars.sizes[name]) for name in ("expected", "counted"))
    assert list(bars.sizes.index) == ["a", "b"] and bars.beside and bars.unit.startswith("MB sent")
    assert expected[0] == 3 and math.isnan(expected[1]) and counted == [10, 10]


def test_a_figure_as_a_file_is_on_white():
    (svg,) = plots.evaluation(evaluations((1.0, None), (2.0, None))).values()
    assert svg.count("<svg ") == 1 and svg.count("currentColor")
    file = drawing.alone(svg)
    assert file.count("<svg ") == 1 and "currentColor" not in file
    ground = file.index('<rect width="100%" height="100%" fill="#ffffff"/>')
    assert ground < file.index("<path")


def test_differences_are_drawn_where_losses_differ(tmp_path, as_values):
    off = [step(n, loss=1 / n + (1e-3 if n in (2, 9) else 0)) for n in range(1, 11)]
    one = {"sync": "single", "workers": 1, "steps": 10}
    table = subject_of(tmp_path, one, {"rows": off}).losses
    both = plots.losses(table)
    (panel,) = both["loss_differences"]
    gaps = dict(zip(panel.table["step"], panel.table["difference"].abs(), strict=True))
    assert gaps == pytest.approx({n: 1e-3 if n in (2, 9) else 0 for n in range(1, 11)})
    assert panel.is_log and "no point: equal" in panel.title
    assert both["first_losses"][0].table["run"].nunique() == 1  # one curve lies on the other
    same = table[table["difference"].fillna(0) == 0]
    assert list(plots.losses(same)) == ["first_losses"]  # nothing else is drawn for equal losses


def test_metrics_of_one_evaluation_are_a_table(tmp_path):
    path = make_run(tmp_path / "a", more=[evaluation(20, accuracy=0.5)])
    assert sections.over_epochs(tables.metrics(read_subject([path]))) == {}


@pytest.mark.parametrize("series", [plots.MOST_LINES, 9])
def test_many_series_over_workers_are_bars_and_not_as_many_colours(as_values, series):
    table = frame(
        {"series": f"batch {number}", "run": f"batch {number}, {workers}", "workers": workers,
         "epoch_s": 9.0 / workers}
        for number in range(series) for workers in (1, 2)
    )  # fmt: skip
    drawn = plots.over_x(table, "workers", {"time": ("epoch_s", "seconds of an epoch")})["time"]
    if series > plots.MOST_LINES:
        assert list(drawn.sizes["epoch_s"]) == [9.0, 4.5] * series
        assert drawn.unit == "seconds of an epoch"
    else:
        ((panel,), of_series) = drawn, ("workers", "epoch_s", "series")
        assert (panel.x, panel.y, panel.by) == of_series and len(panel.table) == 2 * series


def test_a_legend_names_no_part_that_cannot_be_seen(as_values):
    names = ("data", "forward", "backward", "sync", "optimizer")
    sizes = dict(zip(names, (0.001, 0.4, 0.4, 0.2, 0.002), strict=True))
    row = {f"{name}_s": size for name, size in sizes.items()}
    row |= {"run": "ddp", "mean_s": 1.003, "low_s": None, "high_s": None}
    bars = plots.seconds(frame([row]))["seconds"]
    assert bars.sizes.to_dict("list") == {"forward": [0.4], "backward": [0.4], "sync": [0.2]}
    assert bars.labels == ["1.003 s"]


def test_losses_on_one_another_are_called_so(tmp_path, as_values):
    def titles(gap):
        near = [step(n, loss=1 / n + gap) for n in range(1, 9)]
        runs = {"sync": "single", "workers": 1}, {"rows": near}
        found = plots.losses(subject_of(tmp_path / str(gap), *runs).losses)
        return [panel.title for (panel,) in found.values()]

    (title, of_differences) = titles(1e-4)
    assert title == "1 more curve lies on this one" and "single" in of_differences
    equal = {"sync": "all_reduce"}  # a curve that has no point among the differences
    both = {"sync": "single", "workers": 1}, equal, {"rows": [step(n, loss=2.0) for n in (1, 2)]}
    (apart,) = plots.losses(subject_of(tmp_path / "equal", *both).losses)["loss_differences"]
    assert "more curve" not in apart.title
    assert titles(1e-7) == [title]  # rounding errors alone get no figure
    assert titles(0.5)[0] == ""


def test_many_runs_have_the_looks_of_their_series(as_values):
    rows = [
        {"run": f"{series}, {workers}", "series": series, "step": n,
         "loss": 1.0 / n + workers + 9 * (series == "b"),
         "reference": None, "difference": math.nan}
        for series in ("a", "b") for workers in range(4) for n in range(1, 5)
    ]  # fmt: skip
    (panel,) = plots.losses(frame(rows))["first_losses"]
    assert (panel.by, panel.look, len(panel.table)) == ("run", "series", len(rows))
    many = frame(row | {"series": row["run"], "name": None} for row in rows)
    (panel,) = plots.losses(many)["first_losses"]
    assert panel.table["run"].nunique() == 8 and panel.table[panel.look].nunique() == 1


def test_long_curves_are_smoothed_before_their_steps_which_show_their_values(tmp_path):
    losses = {n: 1 + (-1) ** n * 0.5 for n in range(1, 401)}
    rows = [step(n, loss=loss) for n, loss in losses.items()]
    svg = plots.losses(subject_of(tmp_path, {"rows": rows}).losses)["first_losses"]
    assert "loss, mean of 11" in texts(svg)
    titles = re.findall("<title>(.*?)</title>", svg)
    assert 40 < len(titles) <= drawing.MOST_HOVERED and titles[0] == "ddp, step 1: 0.5"


def test_alike_bars_compare_nothing():
    def drawn(*peaks):
        rows = ({"run": str(n), "precision": "fp32", "peak_memory_bytes": peak * 2**20,
                 "peak_gpu_memory_bytes": None} for n, peak in enumerate(peaks))  # fmt: skip
        return plots.memory(frame(rows))

    assert drawn(324, 327.8, 326.4) == {} and list(drawn(324, 400)) == ["memory"]
