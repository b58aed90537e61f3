"""A figure has the points that were measured, and says no more than its table."""

import math

import pytest
from matplotlib.text import Text

from tests.train.report.folders import evaluation, make_run, step
from tests.train.report.test_scaling import courses, unequal
from train.report.data import tables
from train.report.data.subject import read_subject
from train.report.data.tables import Table
from train.report.pages import bar_rows, plots, sections
from train.report.pages.drawing import INK, MARKERS, WIDTHS_IN, alone, as_wide_as


@pytest.fixture(params=WIDTHS_IN)
def drawn(request, monkeypatch):
    """What a function of `plots` drew, as matplotlib's figure, at each width."""

    def figure_of(draw, *args):
        for module in (plots, bar_rows):
            monkeypatch.setattr(module, "as_svg", lambda figure: figure)
        with as_wide_as(request.param):
            return draw.__wrapped__(*args)

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
        assert markers(axis) == sorted((r["workers"], round(r[name], 9)) for r in table.rows)
        for line in axis.lines[1:]:  # those between the points, too; the first is the ideal
            assert set(line.get_xdata()) <= set(table.column("workers"))
    assert [left.get_title(loc="left")] == [f"against {base}" for base in table.unique("base")]


def test_doubtful_points_are_hollow(drawn):
    columns = "series run workers samples_per_s base_workers base speedup ideal efficiency".split()
    table = Table("speedup", "", columns)
    for workers, gain in ((1, 1.0), (4, 9.5)):
        table.add(series="ddp", workers=workers, base_workers=1, base="ddp, 1 worker",
                  speedup=gain, ideal=workers, efficiency=gain / workers)  # fmt: skip
    left, _ = drawn(plots.speedup, table).axes
    fills = {
        int(line.get_xdata()[0]): line.get_markerfacecolor()
        for line in left.lines
        if line.get_marker() in MARKERS
    }
    assert fills[4] == "none" != fills[1]


def bars(rows: list[tuple[float, float | None]]) -> Table:
    table = Table("evaluation", "", ["run", "eval_s", "low_s", "high_s"])
    for number, (value, half) in enumerate(rows):
        ends = {} if half is None else {"low_s": value - half, "high_s": value + half}
        table.add(run=str(number), eval_s=value, **ends)
    return table


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(1.0, None), (2.0, None)], "seconds per evaluation"),
        ([(1.0, 0.1)], "seconds per evaluation (mean, 95 % confidence interval)"),
        (
            [(1.0, 0.1), (2.0, None)],
            "seconds per evaluation (mean, 95 % confidence interval where there is one)",
        ),
    ],
)
def test_an_interval_is_named_only_where_one_is_drawn(drawn, rows, message):
    figure = drawn(plots.bars, bars(rows), "eval_s", "seconds per evaluation", "low_s", "high_s")
    assert figure.axes[0].get_xlabel().replace("\n", " ") == message


def test_one_evaluation_of_each_run_claims_no_interval(tmp_path, monkeypatch):
    units = []
    monkeypatch.setattr(bar_rows, "draw", lambda rows, unit, keys: units.append(unit) or "")
    for sync in ("ddp", "all_reduce"):
        make_run(tmp_path / sync, sync=sync, more=[evaluation(20, accuracy=0.5)])
    sections.build(read_subject([tmp_path / "ddp", tmp_path / "all_reduce"]))
    assert "seconds per evaluation" in units


LONG = " with a label that is as long as some are, bucket mb 25, imbalance of 0.25"


def test_names_and_legend_lie_inside_the_figure(tmp_path, drawn):
    paths = [make_run(tmp_path / sync, sync=sync) for sync in ("ddp", "gather_scatter")]
    table = tables.seconds(read_subject(paths))
    for row in table.rows:
        row["run"] += LONG
    figure = drawn(plots.seconds, table)
    figure.canvas.draw()
    (legend,), (axis,) = figure.legends, figure.axes
    assert [text.get_text() for text in legend.get_texts()] == list(plots.PHASE_COLOURS)
    assert_inside(figure, [legend, *axis.texts])
    assert sum("gather_scatter" in text.get_text() for text in axis.texts) == 1


def assert_inside(figure, parts):
    outer = figure.bbox
    for box in (part.get_window_extent() for part in parts):
        assert outer.x0 <= box.x0 and box.x1 <= outer.x1
        assert outer.y0 <= box.y0 and box.y1 <= outer.y1


def test_throughput_is_the_total_by_workers_and_precision(drawn):
    table = Table("throughput", "", ["run", "precision", "workers", "samples_per_s"])
    for workers, precision, rate in ((4, "bf16", 800.0), (1, "fp32", 200.0), (4, "fp32", 400.0)):
        name = f"{precision}, {workers}"
        table.add(run=name, precision=precision, workers=workers, samples_per_s=rate)
    figure = drawn(plots.throughput, table)
    (axis,), (legend,) = figure.axes, figure.legends
    texts = [text.get_text() for text in axis.texts]
    assert texts == ["200", "fp32, 1", "800", "bf16, 4", "400", "fp32, 4"]  # by workers
    fills = {text: bar.get_facecolor() for text, bar in zip(texts[::2], axis.patches, strict=True)}
    assert fills["200"] == fills["400"] != fills["800"]
    assert {text.get_text() for text in legend.get_texts()} == {"bf16", "fp32"}


def test_numbers_at_bars_are_written_out():
    seconds = [plots._number(value, "seconds per step") for value in (0.006735, 0.9997, 4.368)]
    assert seconds == ["6.73 ms", "1 s", "4.37 s"]
    assert [plots._number(value) for value in (37875.2, 812.34)] == ["37\xa0875", "812.3"]


def test_a_figure_as_a_file_is_on_white_and_drawn_once(tmp_path):
    table = bars([(1.0, None), (2.0, None)])
    both = plots.bars(table, "eval_s", "seconds")
    assert both.count("<svg ") == 2 and both.count("currentColor")
    file = alone(both)
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


def test_metrics_keep_to_their_range_and_have_no_offset(drawn):
    table = Table("metrics", "", "run epoch step metric value".split())
    for epoch, value in ((1, 0.998), (2, 1.0)):
        table.add(run="a", epoch=epoch, step=epoch, metric="accuracy", value=value)
        table.add(run="a", epoch=epoch, step=epoch, metric="eval_loss", value=2.8e-2 + 1e-9 * epoch)
    figure = drawn(plots.metrics, table)
    figure.canvas.draw()
    accuracy, loss = figure.axes
    assert accuracy.get_ylim()[1] == 1.0
    low, high = loss.get_ylim()
    assert high - low >= 0.02 * 2.8e-2
    assert loss.yaxis.get_offset_text().get_text() == ""


def test_metrics_of_one_evaluation_are_a_table(tmp_path):
    path = make_run(tmp_path / "a", more=[evaluation(20, accuracy=0.5)])
    assert sections._metrics(read_subject([path])).figure == ""
