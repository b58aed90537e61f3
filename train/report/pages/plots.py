"""Tables become vector figures: labelled axes with units, colours for the colour-blind."""

import math
from typing import Any

from train.records.summary import PHASES
from train.report.data.reader import Row
from train.report.data.scaling import DOUBTFUL
from train.report.data.tables import Table
from train.report.pages import bar_rows
from train.report.pages.bar_rows import Bar, BarRow
from train.report.pages.drawing import (
    COLOURS,
    INK,
    MARKERS,
    TYPE_PT,
    as_svg,
    colours,
    dashes,
    figure_of,
    for_page_and_phone,
    is_slim,
    legend,
    marker,
    plain,
    whole_numbers,
    width_pt,
    wrapped,
)
from train.report.pages.units import duration

PHASE_COLOURS = dict(
    zip(
        [*PHASES, "other"],
        ["#E69F00", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#999999"],
        strict=True,
    )
)
EXPECTED = "#8A8F98"  # of what was not measured; 3:1 on light and on dark


@for_page_and_phone
def losses(table: Table) -> str:
    """Loss over steps, and below it how far each run is from its reference."""
    labels = table.unique("run")
    apart = [label for label in labels if any(table.column("difference", run=label))]
    rows = 2 if any(value is not None for value in table.column("difference")) else 1
    how = {"height_ratios": [3, 2]} if rows == 2 else {}
    with figure_of(2.6, nrows=rows, sharex=True, squeeze=False, **how) as (figure, axes):
        colour, upper = colours(labels), axes[0][0]
        lines = []
        for number, label in enumerate(labels):
            mine = table.select(run=label)
            x, y = [row["step"] for row in mine], [row["loss"] for row in mine]
            style = {"linewidth": 2.6 if number == 0 else 1.5, "marker": marker(x)}
            lines += _curve(upper, x, y, label, number, colour[label], **style)
        upper.set_ylabel("loss")
        if rows == 2:
            _differences(axes[1][0], table, apart, labels, colour)
        axes[-1][0].set_xlabel("step")
        whole_numbers(axes[-1][0])
        figure.set_figheight(2.5 + 1.6 * (rows - 1) + legend(figure, lines))
        return as_svg(figure)


def _curve(
    axis: Any, x: list[Any], y: list[float], label: str, number: int, colour: str, **style: Any
) -> Any:
    """Draw a line with a dash of its own."""
    return axis.plot(x, y, color=colour, linestyle=dashes(number), label=label, **style)


def _differences(
    axis: Any, table: Table, apart: list[str], labels: list[str], colour: dict[str, str]
) -> None:
    for label in apart:
        mine = [row for row in table.select(run=label) if row["difference"] is not None]
        x = [row["step"] for row in mine]
        y = [abs(row["difference"]) or math.nan for row in mine]  # a gap: a log axis has no zero
        style = {"linewidth": 2.2 if label == apart[0] else 1.3, "marker": "o", "markersize": 2.5}
        _curve(axis, x, y, label, labels.index(label), colour[label], **style)
    zeros = any(value == 0 for label in apart for value in table.column("difference", run=label))
    axis.set_ylabel("difference to\nthe reference" + ("\n(none: a gap)" if zeros else ""))
    if apart:
        axis.set_yscale("log")
    else:
        axis.set_ylim(-1, 1)
        axis.set_yticks([0])
        axis.text(0.5, 0.6, "no difference at any step", transform=axis.transAxes, ha="center")


@for_page_and_phone
def seconds(table: Table) -> str:
    """A bar a run, its phases stacked, with the confidence interval of the mean."""
    rows = []
    for row in table.rows:
        parts = [(row[f"{phase}_s"] or 0.0, fill) for phase, fill in PHASE_COLOURS.items()]
        if not any(size for size, _ in parts):
            parts = [(row["mean_s"], PHASE_COLOURS["other"])]
        bar = Bar(parts, duration(row["mean_s"]), _interval(row, "low_s", "high_s"), row["mean_s"])
        rows.append(BarRow(row["run"], [bar]))
    return bar_rows.draw(rows, f"seconds per iteration{_of_interval(table.rows)}", PHASE_COLOURS)


def _number(value: float, unit: str = "") -> str:
    """What stands at a bar's end; never as a power of ten where digits can be read."""
    if unit.startswith("seconds"):
        return duration(value)
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if value >= 1000 else f"{value:.4g}"


def _interval(row: Row, low: str, high: str) -> tuple[float, float] | None:
    """No time is negative, whatever the interval of a few values says."""
    return (max(0.0, row[low]), row[high]) if row[high] is not None else None


def _of_interval(rows: list[Row], high: str = "high_s") -> str:
    """What the figure has beside the value: nothing where nothing was measured more than once."""
    having = sum(row[high] is not None for row in rows)
    if not having:
        return ""
    return " (mean, 95 % confidence interval" + (
        ")" if having == len(rows) else " where there is one)"
    )


@for_page_and_phone
def speedup(table: Table) -> str:
    """Speed-up and efficiency over workers; panels for each base, which is named.

    A series has the points that were measured and no other; hollow ones are doubtful.
    """
    from matplotlib.lines import Line2D

    bases, series = table.unique("base"), table.unique("series")
    count = 2 * len(bases)
    shape = {"nrows": count, "ncols": 1} if is_slim() else {"nrows": len(bases), "ncols": 2}
    with figure_of(2.4, squeeze=False, **shape) as (figure, axes):
        colour = colours(series, ink_first=False)
        style = {name: (colour[name], MARKERS[n % len(MARKERS)]) for n, name in enumerate(series)}
        panels = axes.reshape(len(bases), 2)
        for base, pair in zip(bases, panels, strict=True):
            _against(base, pair, table.select(base=base), style)
        lines = [Line2D([], [], color=c, marker=m, label=name) for name, (c, m) in style.items()]
        lines.append(Line2D([], [], color=INK, linewidth=1, linestyle=(0, (2, 2)), label="ideal"))
        if any(row["efficiency"] > DOUBTFUL for row in table.rows):
            lines.append(Line2D([], [], color=INK, marker="o", markerfacecolor="none",
                                linestyle="none", label="doubtful: above ideal"))  # fmt: skip
        each = 1.9 if is_slim() or len(bases) > 2 else 2.2
        figure.set_figheight(each * shape["nrows"] + legend(figure, lines))
        return as_svg(figure)


def _against(base: str, panels: Any, rows: list[Row], style: dict[str, tuple[str, str]]) -> None:
    left, right = panels
    few, most = rows[0]["base_workers"], max(row["workers"] for row in rows)
    ideal = {"color": INK, "linewidth": 1, "linestyle": (0, (2, 2))}
    left.plot([few, most], [1, most / few], **ideal)
    right.axhline(1, **ideal)
    names = list(dict.fromkeys(row["series"] for row in rows))
    for number, name in enumerate(names):
        mine = sorted((r for r in rows if r["series"] == name), key=lambda row: row["workers"])
        x = [row["workers"] for row in mine]
        colour, shape = style[name]
        size = 4 + 1.3 * min(5, len(names) - 1 - number)  # points at one place stay visible
        for axis, value in ((left, "speedup"), (right, "efficiency")):
            axis.plot(x, [row[value] for row in mine], color=colour)
            for row in mine:
                fill = "none" if row["efficiency"] > DOUBTFUL else colour
                axis.plot(
                    row["workers"], row[value], color=colour, marker=shape, markersize=size,
                    markerfacecolor=fill, clip_on=False,
                )  # fmt: skip
    for axis, title in ((left, "speed-up"), (right, "efficiency")):
        axis.set_xlabel("workers")
        axis.set_ylabel(title)
        _ticks_of_workers(axis, sorted({few, *(row["workers"] for row in rows)}))
        axis.set_ylim(bottom=0)
    left.set_title(
        plain(wrapped(f"against {base}", width_pt() * 0.8)), loc="left", fontsize=TYPE_PT
    )


def _ticks_of_workers(axis: Any, workers: list[int]) -> None:
    """A tick for each number that was run, less those whose labels would touch the next."""
    low, high = workers[0], workers[-1]
    least = (high - low) * (0.09 if is_slim() else 0.11)
    kept = [high]
    for one in reversed(workers[:-1]):
        if kept[-1] - one >= least:
            kept.append(one)
    axis.set_xticks(kept[::-1])


@for_page_and_phone
def metrics(table: Table) -> str:
    """A panel for each metric, over epochs."""
    names, labels = table.unique("metric"), table.unique("run")
    with figure_of(2, nrows=len(names), squeeze=False, sharex=True) as (figure, axes):
        colour = colours(labels)
        lines: dict[str, Any] = {}
        for axis, metric in zip(axes[:, 0], names, strict=True):
            for number, label in enumerate(labels):
                mine = table.select(run=label, metric=metric)
                x = [row["epoch"] or row["step"] for row in mine]
                y = [row["value"] for row in mine]
                if x:
                    style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4}
                    (line,) = _curve(
                        axis, x, y, label, number, colour[label], clip_on=False, **style
                    )
                    lines.setdefault(label, line)
            _range(axis, table.column("value", metric=metric))
            axis.set_ylabel(plain(metric))
            whole_numbers(axis)
        axes[-1][0].set_xlabel("epoch")
        figure.set_figheight(1.7 * len(names) + 0.2 + legend(figure, list(lines.values())))
        return as_svg(figure)


def _range(axis: Any, values: list[float]) -> None:
    """Differences in the last digits do not fill the axis, and no share is above 1."""
    axis.yaxis.set_major_formatter("{x:.4g}")
    low, high = axis.get_ylim()
    least = 0.02 * max(abs(value) for value in values)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    axis.set_ylim(low, 1.0 if max(values) <= 1.0 < high else high)


@for_page_and_phone
def pairs(
    table: Table, labels: list[str], first: str, second: str, unit: str, scale: float = 1.0
) -> str:
    """Two bars for each row: what was expected or predicted, and what was measured."""
    keys = {
        name.rsplit("_", 1)[0].replace("_", " "): fill
        for name, fill in ((first, EXPECTED), (second, COLOURS[0]))
    }
    rows = []
    for row, label in zip(table.rows, labels, strict=True):
        values = [row[first], row[second]]
        if any(value is not None for value in values):
            bars = [
                Bar([((value or 0.0) / scale, fill)],
                    "none" if value is None else _number(value / scale, unit))
                for value, fill in zip(values, keys.values(), strict=True)
            ]  # fmt: skip
            rows.append(BarRow(label.replace("\n", ", "), bars))
    return bar_rows.draw(rows, unit, keys) if rows else ""


@for_page_and_phone
def bars(table: Table, column: str, unit: str, low: str = "", high: str = "") -> str:
    """A bar a run, with the confidence interval where there is one."""
    rows = []
    for row in table.rows:
        value = row[column] or 0.0
        interval = _interval(row, low, high) if high else None
        rows.append(
            BarRow(row["run"], [Bar([(value, COLOURS[0])], _number(value, unit), interval, value)])
        )
    return bar_rows.draw(rows, unit + (_of_interval(table.rows, high) if high else ""), {})


@for_page_and_phone
def throughput(table: Table) -> str:
    """Samples per second of all workers together, by workers, in a colour for each precision.

    The table has run, workers, samples_per_s and precision, which may be None.
    """
    precisions = [str(one) for one in table.unique("precision") if one is not None]
    keys = dict(zip(precisions, COLOURS * len(precisions), strict=False))
    rows, before = [], None
    for row in sorted(table.rows, key=lambda row: row["workers"]):
        fill = keys.get(str(row["precision"]), COLOURS[0])
        bar = Bar([(row["samples_per_s"], fill)], _number(row["samples_per_s"]))
        rows.append(BarRow(row["run"], [bar], apart=before not in (None, row["workers"])))
        before = row["workers"]
    return bar_rows.draw(rows, "samples per second, all workers", keys if len(keys) > 1 else {})
