"""A figure has the points that were measured, and says no more than its table."""

import math

import pytest
from matplotlib.text import Text

from tests.train.report.folders import evaluation, make_run, step
from tests.train.report.test_scaling import courses, predicted, unequal
from train.report.data import scaling, tables
from train.report.data.subject import read_subject
from train.report.data.tables import frame, records
from train.report.pages import plots, sections
from train.report.pages.drawing import INK, MARKERS, alone


@pytest.fixture
def drawn(monkeypatch):
    """What a function of `plots` drew, as matplotlib's figure."""

    def figure_of(draw, *args):
        monkeypatch.setattr(plots, "as_svg", lambda figure: figure)
        return draw(*args)

    return figure_of


def markers(axis) -> list[tuple[float, float]]:
    return sorted(
        (x, round(y, 9))
        for line in axis.lines
        if line.get_marker() in MARKERS
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    )


@pytest.mark.parametrize("study", [courses, unequal])
def test_every_point_of_the_speedup_was_measured(tmp_path, drawn, study):
    table = study(tmp_path)
    left, right = drawn(plots.speedup, table).axes
    for axis, name in ((left, "speedup"), (right, "efficiency")):
        wanted = sorted((row["workers"], round(row[name], 9)) for row in records(table))
        assert markers(axis) == wanted
        for line in axis.lines[1:]:  # those between the points, too; the first is the ideal
            assert set(line.get_xdata()) <= set(table["workers"])
    (title,) = [f"against {base}" for base in table["base"].unique()]
    assert left.get_title(loc="left").replace("\n", " ") == title


def test_what_is_predicted_is_a_dashed_line(tmp_path, drawn):
    """Of each series, in its colour, through the workers that were run."""
    predicted(tmp_path, 0.1)
    figure = drawn(plots.speedup, scaling.speedup(read_subject([tmp_path])))
    dashed = [
        line.get_ydata()[-1]
        for line in figure.axes[0].lines
        if line.is_dashed() and line.get_color() != INK and math.isfinite(line.get_ydata()[-1])
    ]
    assert dashed == pytest.approx([1.5 / 1.1, 3 / 1.1])
    assert "predicted" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_doubtful_points_are_hollow(drawn):
    table = frame(
        {"series": "ddp", "run": "ddp", "workers": workers, "samples_per_s": 1.0,
         "base_workers": 1, "base": "ddp, 1 worker", "speedup": gain, "ideal": workers,
         "efficiency": gain / workers, "predicted": None}
        for workers, gain in ((1, 1.0), (4, 9.5))
    )  # fmt: skip
    left, _ = drawn(plots.speedup, table).axes
    fills = {
        int(next(iter(line.get_xdata()))): line.get_markerfacecolor()
        for line in left.lines
        if line.get_marker() in MARKERS
    }
    assert fills[4] == "none" != fills[1]


def evaluations(rows: list[tuple[float, float | None]]):
    return frame(
        {
            "run": str(number),
            "eval_s": value,
            "low_s": None if half is None else value - half,
            "high_s": None if half is None else value + half,
        }
        for number, (value, half) in enumerate(rows)
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1.0, None), (2.0, None)], "seconds per evaluation"),
        ([(1.0, 0.1)], "seconds per evaluation (mean, 95 % interval)"),
        ([(1.0, 0.1), (2.0, None)], "seconds per evaluation (mean, 95 % interval where known)"),
    ],
)
def test_an_interval_is_named_only_where_one_is_drawn(drawn, rows, message):
    words = "eval_s", "seconds per evaluation", "low_s", "high_s"
    (axis,) = drawn(plots.values, evaluations(rows), *words).axes
    assert axis.get_xlabel().replace("\n", " ") == message


def test_one_evaluation_of_each_run_claims_no_interval(tmp_path, monkeypatch):
    labels = []
    monkeypatch.setattr(plots, "as_svg", lambda figure: labels.append(figure.axes[0]) or "")
    for sync in ("ddp", "all_reduce"):
        make_run(tmp_path / sync, sync=sync, more=[evaluation(20, accuracy=0.5)])
    sections.build(read_subject([tmp_path / "ddp", tmp_path / "all_reduce"]))
    assert "seconds per evaluation" in [axis.get_xlabel() for axis in labels]


LONG = " with a label that is as long as some are, bucket mb 25, imbalance of 0.25"


def test_names_and_legend_lie_inside_the_figure(tmp_path, drawn):
    paths = [make_run(tmp_path / sync, sync=sync) for sync in ("ddp", "gather_scatter")]
    table = tables.seconds(read_subject(paths))
    table["run"] += LONG
    figure = drawn(plots.seconds, table)
    figure.canvas.draw()
    (legend,), (axis,) = figure.legends, figure.axes
    assert [text.get_text() for text in legend.get_texts()] == list(plots.PHASE_COLOURS)
    outer = figure.bbox
    for part in (legend, *axis.texts, *axis.get_yticklabels()):
        box = part.get_window_extent()
        assert outer.x0 <= box.x0 and box.x1 <= outer.x1
        assert outer.y0 <= box.y0 and box.y1 <= outer.y1
    assert sum("gather_scatter" in one.get_text() for one in axis.get_yticklabels()) == 1


def test_throughput_is_the_total_by_workers_and_precision(drawn):
    table = frame(
        {"run": f"{precision}, {workers}", "precision": precision, "workers": workers,
         "samples_per_s": rate}
        for workers, precision, rate in ((4, "bf16", 800.0), (1, "fp32", 200.0), (4, "fp32", 400.0))
    )  # fmt: skip
    figure = drawn(plots.throughput, table)
    (axis,), (legend,) = figure.axes, figure.legends
    names = [one.get_text() for one in axis.get_yticklabels()]
    assert names == ["fp32, 1", "bf16, 4", "fp32, 4"]  # by workers
    assert [text.get_text() for text in axis.texts] == ["200", "800", "400"]
    of_kind = {one.get_label(): [bar.get_width() for bar in one] for one in axis.containers[:2]}
    assert of_kind == {"fp32": [200, 0, 400], "bf16": [0, 800, 0]}
    assert {text.get_text() for text in legend.get_texts()} == {"bf16", "fp32"}


def test_expected_and_observed_stand_side_by_side(drawn):
    table = frame([{"expected_bytes": 100.0, "observed_bytes": 105.0},
                   {"expected_bytes": None, "observed_bytes": 3.0}])  # fmt: skip
    (axis,) = drawn(plots.pairs, ["a", "b"], table.astype(float), "MB").axes
    assert [text.get_text() for text in axis.texts] == ["100", "none", "105", "3"]


def test_numbers_at_bars_are_written_out():
    assert [plots.number(value) for value in (37875.2, 812.34)] == ["37\xa0875", "812.3"]


def test_a_figure_as_a_file_is_on_white():
    drawing = plots.values(evaluations([(1.0, None), (2.0, None)]), "eval_s", "seconds")
    assert drawing.count("<svg ") == 1 and drawing.count("currentColor")
    file = alone(drawing)
    assert file.count("<svg ") == 1 and "currentColor" not in file
    ground = file.index('<rect width="100%" height="100%" fill="#ffffff"/>')
    assert ground < file.index("<path")


def test_no_text_is_in_a_colour(tmp_path, drawn):
    """Of the ground a page has little is known; the page's ink has enough contrast with it."""
    figure = drawn(plots.speedup, courses(tmp_path))
    texts = [one for axis in figure.axes for one in axis.findobj(Text)]
    texts += [one for legend in figure.legends for one in legend.get_texts()]
    assert texts and {one.get_color() for one in texts} == {INK}


def test_equal_losses_are_a_gap_and_not_joined_across(tmp_path, drawn):
    off = [step(n, loss=1 / n + (1e-3 if n in (2, 9) else 0)) for n in range(1, 11)]
    paths = [
        make_run(tmp_path / "a", sync="single", workers=1, steps=10),
        make_run(tmp_path / "b", rows={0: off, 1: off}),
    ]
    figure = drawn(plots.losses, tables.losses(read_subject(paths)))
    (line,) = figure.axes[1].lines
    y = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert y[2] == pytest.approx(1e-3) == y[9] and all(math.isnan(y[n]) for n in range(3, 9))


def test_metrics_of_one_evaluation_are_a_table(tmp_path):
    path = make_run(tmp_path / "a", more=[evaluation(20, accuracy=0.5)])
    assert sections._metrics(read_subject([path])).figure == ""
