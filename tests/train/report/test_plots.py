"""A figure has the points that were measured, and says no more than its table."""

import math
import re

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.text import Text

from tests.train.report.folders import evaluation, make_run, step, subject_of
from tests.train.report.studies import courses, unequal
from train.report.data import tables
from train.report.data.frames import frame, records
from train.report.data.subject import read_subject
from train.report.pages import drawing, plots, sections
from train.report.pages.drawing import INK, MARKERS

AS_SVG = drawing.as_svg


@pytest.fixture(autouse=True)
def as_figures(monkeypatch):
    """Have functions of `plots` return what they drew as matplotlib's figures."""
    monkeypatch.setattr(drawing, "as_svg", lambda figure: figure)


def markers(axis) -> list[tuple[float, float]]:
    return sorted(
        (x, round(y, 9))
        for line in axis.lines
        if line.get_marker() in MARKERS
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    )


def test_times_of_a_figure_have_one_unit():
    row = {"low_s": None, "high_s": None}
    for (small, large), unit, full in (
        ((0.2, 0.5), "ms", "milliseconds"),
        ((0.2, 1.5), "s", "seconds"),
    ):
        table = frame([row | {"run": "a", "eval_s": small}, row | {"run": "b", "eval_s": large}])
        (axis,) = plots.evaluation(table)["evaluation"].axes
        assert {text.get_text().split()[1] for text in axis.texts} == {unit}
        assert axis.get_xlabel().split()[0] == full


@pytest.mark.parametrize("study", [courses, unequal])
def test_every_point_of_the_speedup_was_measured(tmp_path, study):
    table = study(tmp_path)
    figure = plots.speedup(table)["speedup"]
    (axis,) = figure.axes
    wanted = [(row["workers"], round(row["speedup"] or 1.0, 9)) for row in records(table)]
    assert markers(axis) == sorted(wanted)  # the base is at one
    for line in axis.lines[1:]:  # those between the points, too; the first is the ideal
        assert set(line.get_xdata()) <= set(table["workers"])
    (base,) = table["base"].unique()
    assert base in axis.get_title(loc="left").replace("\n", " ")
    # of the ground a page has little is known; the page's ink has enough contrast with it
    texts = [one for axis in figure.axes for one in axis.findobj(Text)]
    texts += figure.legends[0].get_texts()
    assert {one.get_color() for one in texts} == {INK}


NO_ENDS = {"low_s": None, "high_s": None}


def evaluations(*rows: tuple[float, float | None]):
    return frame(
        {"run": str(number), "eval_s": value, "low_s": half and value - half,
         "high_s": half and value + half}
        for number, (value, half) in enumerate(rows)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "is_drawn"),
    [
        ([(1.0, None), (2.0, None)], False),
        ([(1.0, 0.1), (2.0, 0.1)], True),
        ([(1.0, 0.1), (2.0, None)], True),
    ],
)
def test_an_interval_is_named_only_where_one_is_drawn(rows, is_drawn):
    (axis,) = plots.evaluation(evaluations(*rows))["evaluation"].axes
    drawn = any(isinstance(one, ErrorbarContainer) for one in axis.containers)
    assert drawn == ("95" in axis.get_xlabel()) == is_drawn


def test_many_bars_are_several_figures_on_one_scale():
    """On paper a figure of all of them would have type that nobody can read."""
    table = evaluations(*((float(number), None) for number in range(1, 41)))
    figures = plots.evaluation(table)
    assert list(figures) == ["evaluation", "evaluation_2", "evaluation_3"]
    axes = [figure.axes[0] for figure in figures.values()]
    assert {axis.get_xlim() for axis in axes} == {(0, 1.35 * 40)}
    assert [len(axis.get_yticklabels()) for axis in axes] == [14, 14, 12]
    assert [text.get_text() for text in axes[2].texts] == [f"{n} s" for n in range(29, 41)]


def test_bars_with_long_names_are_fewer_in_a_figure():
    name = "a setting and its value " * 4  # in lines of 24 letters
    rows = frame({"run": f"{name}{n}", "eval_s": 1.0 + n} | NO_ENDS for n in range(18))
    axes = [figure.axes[0] for figure in plots.evaluation(rows).values()]
    lines = [1 + label.get_text().count("\n") for label in axes[0].get_yticklabels()]
    assert len(axes) == 3 and sum(lines) <= plots.MOST_NAME_LINES


def test_throughput_is_the_total_by_workers_and_precision():
    table = frame(
        {"run": f"{precision}, {workers}", "precision": precision, "workers": workers,
         "samples_per_s": rate}
        for workers, precision, rate in (
            (4, "bf16", 37875.2), (1, "fp32", 200.0), (4, "fp32", 812.34)
        )
    )  # fmt: skip
    figure = plots.throughput(table)["throughput"]
    (axis,), (legend,) = figure.axes, figure.legends
    names = [one.get_text() for one in axis.get_yticklabels()]
    assert names == ["fp32, 1", "bf16, 4", "fp32, 4"]  # by workers
    assert [text.get_text() for text in axis.texts] == ["200", "37\xa0875", "812"]
    of_kind = {one.get_label(): [bar.get_width() for bar in one] for one in axis.containers[:2]}
    assert of_kind == {"fp32": [200, 0, 812.34], "bf16": [0, 37875.2, 0]}
    assert {text.get_text() for text in legend.get_texts()} == {"bf16", "fp32"}


def test_traffic_of_all_hosts_stands_beside_what_was_expected():
    """What is not known of one host is not known of all."""
    rows = (("a", "sent", 1e6), ("a", "sent", 2e6), ("b", "sent", 4e6), ("b", "sent", None))
    rows += (("a", "received", 9e6),)  # as much as is sent, of all hosts
    table = frame(
        {"run": run, "direction": way, "expected_bytes": size, "observed_bytes": 5e6}
        for run, way, size in rows
    )
    (axis,) = plots.traffic(table)["traffic"].axes
    assert [one.get_text() for one in axis.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axis.texts] == ["3", "none", "10", "10"]


def test_a_figure_as_a_file_is_on_white():
    (figure,) = plots.evaluation(evaluations((1.0, None), (2.0, None))).values()
    svg = AS_SVG(figure)
    assert svg.count("<svg ") == 1 and svg.count("currentColor")
    file = drawing.alone(svg)
    assert file.count("<svg ") == 1 and "currentColor" not in file
    ground = file.index('<rect width="100%" height="100%" fill="#ffffff"/>')
    assert ground < file.index("<path")


def test_equal_losses_are_a_gap_and_not_joined_across(tmp_path):
    off = [step(n, loss=1 / n + (1e-3 if n in (2, 9) else 0)) for n in range(1, 11)]
    one = {"sync": "single", "workers": 1, "steps": 10}
    table = subject_of(tmp_path, one, {"rows": off}).losses
    both = plots.losses(table)
    (line,) = both["loss_differences"].axes[0].lines
    y = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert y[2] == pytest.approx(1e-3) == y[9] and all(math.isnan(y[n]) for n in range(3, 9))
    assert len(both["first_losses"].axes[0].lines) == 1  # one curve lies on the other
    same = table[table["difference"].fillna(0) == 0]
    assert list(plots.losses(same)) == ["first_losses"]  # of equal losses nothing else is drawn


def test_metrics_of_one_evaluation_are_a_table(tmp_path):
    path = make_run(tmp_path / "a", more=[evaluation(20, accuracy=0.5)])
    assert sections.over_epochs(tables.metrics(read_subject([path]))) == {}


def test_many_series_over_workers_are_bars_and_not_as_many_colours():
    def figures(series):
        rows = ((f"batch {number}", workers) for number in range(series) for workers in (1, 2))
        table = frame(
            {
                "series": name,
                "run": f"{name}, {workers}",
                "workers": workers,
                "epoch_s": 9.0 / workers,
            }
            for name, workers in rows
        )
        return plots.over_x(table, "workers", {"time": ("epoch_s", "seconds of an epoch")})

    (few,) = figures(plots.MOST_LINES)["time"].axes
    assert len(few.lines) == plots.MOST_LINES and not few.patches
    (many,) = figures(9)["time"].axes
    assert len(many.patches) == 18 and not many.lines
    assert not figures(9)["time"].legends


def test_a_legend_names_no_part_that_cannot_be_seen():
    names = ("data", "forward", "backward", "sync", "optimizer")
    sizes = dict(zip(names, (0.001, 0.4, 0.4, 0.2, 0.002), strict=True))
    row = {f"{name}_s": size for name, size in sizes.items()}
    row |= {"run": "ddp", "mean_s": 1.003, "low_s": None, "high_s": None}
    (legend,) = plots.seconds(frame([row]))["seconds"].legends
    assert {one.get_text() for one in legend.get_texts()} == {"forward", "backward", "sync"}


def test_losses_on_one_another_are_called_so(tmp_path):
    def titles(gap):
        near = [step(n, loss=1 / n + gap) for n in range(1, 9)]
        runs = {"sync": "single", "workers": 1}, {"rows": near}
        found = plots.losses(subject_of(tmp_path / str(gap), *runs).losses)
        return [figure.axes[0].get_title(loc="left") for figure in found.values()]

    (title, of_differences) = titles(1e-4)
    assert title == "1 more curve lies on this one" and "single" in of_differences
    equal = {"sync": "all_reduce"}  # a curve that has no point among the differences
    both = {"sync": "single", "workers": 1}, equal, {"rows": [step(n, loss=2.0) for n in (1, 2)]}
    apart = plots.losses(subject_of(tmp_path / "equal", *both).losses)["loss_differences"]
    assert "more curve" not in apart.axes[0].get_title(loc="left")
    assert titles(1e-7) == [title]  # rounding alone has no figure of its own
    assert titles(0.5)[0] == ""


def test_many_runs_have_the_looks_of_their_series(tmp_path):
    rows = [
        {"run": f"{series}, {workers}", "series": series, "step": n,
         "loss": 1.0 / n + workers + 9 * (series == "b"),
         "reference": None, "difference": math.nan}
        for series in ("a", "b") for workers in range(4) for n in range(1, 5)
    ]  # fmt: skip
    (axis,) = plots.losses(frame(rows))["first_losses"].axes
    assert len(axis.lines) == 8 and len({line.get_color() for line in axis.lines}) == 2
    assert all(list(line.get_xdata()) == [1, 2, 3, 4] for line in axis.lines)
    many = frame(row | {"series": row["run"], "name": None} for row in rows)
    (axis,) = plots.losses(many)["first_losses"].axes
    assert len(axis.lines) == 8 and len({line.get_color() for line in axis.lines}) == 1


def test_long_curves_are_smoothed_before_their_steps_which_show_their_values(tmp_path):
    losses = {n: 1 + (-1) ** n * 0.5 for n in range(1, 401)}
    rows = [step(n, loss=loss) for n, loss in losses.items()]
    (figure,) = plots.losses(subject_of(tmp_path, {"rows": rows}).losses).values()
    (axis,) = figure.axes
    raw, smooth = (line.get_ydata() for line in axis.lines)
    assert list(raw) == [*losses.values()] and max(abs(smooth - 1)) < 0.1
    assert "mean of 11 steps" in axis.get_ylabel().replace("\n", " ")
    titles = re.findall("<title>(.*?)</title>", AS_SVG(figure))
    assert 40 < len(titles) <= drawing.MOST_HOVERED and titles[0] == "ddp, step 1: 0.5"


def test_alike_bars_compare_nothing():
    def drawn(*peaks):
        rows = ({"run": str(n), "precision": "fp32", "peak_memory_bytes": peak * 2**20,
                 "peak_gpu_memory_bytes": None} for n, peak in enumerate(peaks))  # fmt: skip
        return plots.memory(frame(rows))

    assert drawn(324, 327.8, 326.4) == {} and list(drawn(324, 400)) == ["memory"]


def test_axis_of_bars_ends_with_them():
    (axis,) = plots.evaluation(evaluations((1.0, None), (2.5, None)))["evaluation"].axes
    assert axis.spines["bottom"].get_bounds() == (0, 2.5) and max(axis.get_xticks()) <= 2.5
