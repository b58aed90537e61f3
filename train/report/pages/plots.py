"""Tables become vector figures: labelled axes with units, colours for the colour-blind."""

import math
from typing import Any

from train.records.summary import PHASES
from train.report.data.reader import Row
from train.report.data.scaling import DOUBTFUL
from train.report.data.tables import Table
from train.report.pages.drawing import (
    COLOURS,
    INK,
    as_svg,
    colours,
    dashes,
    figure_of,
    label_ends,
    marker,
    note,
    plain,
    whole_numbers,
)

PHASE_COLOURS = dict(
    zip(
        [*PHASES, "other"],
        ["#E69F00", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#999999"],
        strict=True,
    )
)


def losses(table: Table) -> str:
    """Loss over steps, and below it how far each run is from its reference."""
    labels = table.unique("run")
    apart = [label for label in labels if any(table.column("difference", run=label))]
    rows = 2 if any(value is not None for value in table.column("difference")) else 1
    how = {"height_ratios": [3, 2]} if rows == 2 else {}
    height = 2.6 + 0.13 * len(labels) + 1.6 * (rows - 1)
    with figure_of(height, nrows=rows, sharex=True, squeeze=False, **how) as (figure, axes):
        colour, upper = colours(labels), axes[0][0]
        ends = []
        for number, label in enumerate(labels):
            mine = table.select(run=label)
            x, y = [row["step"] for row in mine], [row["loss"] for row in mine]
            style = {"linewidth": 2.6 if number == 0 else 1.5, "marker": marker(x)}
            ends.append(_curve(upper, x, y, label, number, colour[label], **style))
        label_ends(upper, ends)
        upper.set_ylabel("loss")
        if rows == 2:
            _differences(axes[1][0], table, apart, colour)
        axes[-1][0].set_xlabel("step")
        whole_numbers(axes[-1][0])
        return as_svg(figure)


def _curve(
    axis: Any, x: list[Any], y: list[float], label: str, number: int, colour: str, **style: Any
) -> tuple[float, float, str, str]:
    """Draw a line with a dash of its own; where it ends, and what to write there."""
    axis.plot(x, y, color=colour, linestyle=dashes(number), **style)
    last = max(at for at, value in enumerate(y) if not math.isnan(value))
    return x[last], y[last], label, colour


def _differences(axis: Any, table: Table, apart: list[str], colour: dict[str, str]) -> None:
    ends = []
    for number, label in enumerate(apart):
        mine = [row for row in table.select(run=label) if row["difference"] is not None]
        x = [row["step"] for row in mine]
        y = [abs(row["difference"]) or math.nan for row in mine]  # a gap: a log axis has no zero
        style = {"linewidth": 2.2 if number == 0 else 1.3, "marker": "o", "markersize": 2.5}
        ends.append(_curve(axis, x, y, label, number, colour[label], **style))
    zeros = any(value == 0 for label in apart for value in table.column("difference", run=label))
    axis.set_ylabel("difference to\nthe reference" + ("\n(none: a gap)" if zeros else ""))
    if apart:
        axis.set_yscale("log")
        label_ends(axis, ends)
    else:
        axis.set_ylim(-1, 1)
        axis.set_yticks([0])
        axis.text(0.5, 0.6, "no difference at any step", transform=axis.transAxes, ha="center")


def seconds(table: Table) -> str:
    """A bar a run, its phases stacked, with the confidence interval of the mean."""
    rows = table.rows[::-1]
    with figure_of(1.5 + 0.36 * len(rows)) as (figure, axis):
        for place, row in enumerate(rows):
            left = 0.0
            for phase, fill in PHASE_COLOURS.items():
                size = row[f"{phase}_s"] or 0.0
                axis.barh(place, size, left=left, height=0.68, color=fill, linewidth=0)
                left += size
            if not left:
                axis.barh(place, row["mean_s"], height=0.68, color=PHASE_COLOURS["other"])
            half = row["high_s"] - row["mean_s"] if row["high_s"] is not None else 0.0
            axis.errorbar(row["mean_s"], place, xerr=half, color=INK, capsize=3, linewidth=1.2)
            right = max(left, row["mean_s"] + half)
            note(axis, f"{row['mean_s']:.4g}", (right, place))
        names = [row["run"] for row in rows]
        _finish(axis, names, f"seconds per iteration{_of_interval(rows)}", 1.1)
        axis.set_ylim(-0.6, len(rows) - 0.4)
        _name_phases(figure)
        return as_svg(figure)


def _of_interval(rows: list[Row], high: str = "high_s") -> str:
    """What the figure has beside the value: nothing where nothing was measured more than once."""
    having = sum(row[high] is not None for row in rows)
    if not having:
        return ""
    return " (mean, 95 % confidence interval" + (
        ")" if having == len(rows) else " where there is one)"
    )


def _name_phases(figure: Any) -> None:
    """The phases' names in their colours above the bars, each beside a square of it."""
    from matplotlib.patches import Patch

    handles = [Patch(color=fill, label=phase) for phase, fill in PHASE_COLOURS.items()]
    figure.legend(
        handles=handles,
        ncols=len(handles),
        loc="outside upper left",
        frameon=False,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.1,
        handletextpad=0.4,
        borderaxespad=0.1,
    )


def speedup(table: Table) -> str:
    """Speed-up and efficiency over workers; a row of panels for each base, which is named.

    A series has the points that were measured and no other; hollow ones are doubtful.
    """
    bases, series = table.unique("base"), table.unique("series")
    height = (2.4 if len(bases) < 3 else 1.7) * len(bases) + 0.1 * len(series)
    with figure_of(height, nrows=len(bases), ncols=2, squeeze=False) as (figure, axes):
        colour = colours(series, ink_first=False)
        for base, panels in zip(bases, axes, strict=True):
            _against(base, panels, table.select(base=base), colour)
        return as_svg(figure)


def _against(base: str, panels: Any, rows: list[Row], colour: dict[str, str]) -> None:
    left, right = panels
    few, most = rows[0]["base_workers"], max(row["workers"] for row in rows)
    left.plot([few, most], [1, most / few], color=INK, linewidth=1, linestyle=(0, (2, 2)))
    note(left, "ideal", (most, most / few), (-14, 0), ha="right", va="top")
    right.axhline(1, color=INK, linewidth=1, linestyle=(0, (2, 2)))
    ends = []
    for name in dict.fromkeys(row["series"] for row in rows):
        mine = sorted((r for r in rows if r["series"] == name), key=lambda row: row["workers"])
        x = [row["workers"] for row in mine]
        for axis, value in ((left, "speedup"), (right, "efficiency")):
            axis.plot(x, [row[value] for row in mine], color=colour[name])
            for row in mine:
                fill = "none" if row["efficiency"] > DOUBTFUL else colour[name]
                axis.plot(
                    row["workers"], row[value], color=colour[name], marker="o", markersize=4,
                    markerfacecolor=fill,
                )  # fmt: skip
        end = x[-1], mine[-1]["efficiency"]
        if x[-1] == most:
            ends.append((*end, name, colour[name]))
        else:  # beside its point: a leader to the edge would look like a line of its own
            note(right, name, end, (5, -4), color=colour[name], va="top")
    left.set_title(plain(f"against {base}"), loc="left", fontsize=9.5)
    for axis, title in ((left, "speed-up"), (right, "efficiency")):
        axis.set_xlabel("workers")
        axis.set_ylabel(title)
        axis.set_xticks(sorted({few, *(row["workers"] for row in rows)}))
        axis.set_ylim(bottom=0)
    label_ends(right, ends)


def metrics(table: Table) -> str:
    """A panel for each metric, over epochs."""
    names, labels = table.unique("metric"), table.unique("run")
    height = (1.9 + 0.1 * len(labels)) * len(names)
    with figure_of(height, nrows=len(names), squeeze=False, sharex=True) as (figure, axes):
        colour = colours(labels)
        for axis, metric in zip(axes[:, 0], names, strict=True):
            ends = []
            for number, label in enumerate(labels):
                mine = table.select(run=label, metric=metric)
                x = [row["epoch"] or row["step"] for row in mine]
                y = [row["value"] for row in mine]
                if x:
                    style = {"marker": "o", "markersize": 4, "clip_on": False}
                    ends.append(_curve(axis, x, y, label, number, colour[label], **style))
            _range(axis, table.column("value", metric=metric))
            label_ends(axis, ends)
            axis.set_ylabel(plain(metric))
            whole_numbers(axis)
        axes[-1][0].set_xlabel("epoch")
        return as_svg(figure)


def _range(axis: Any, values: list[float]) -> None:
    """Differences in the last digits do not fill the axis, and no share is above 1."""
    axis.ticklabel_format(axis="y", useOffset=False)
    low, high = axis.get_ylim()
    least = 0.02 * max(abs(value) for value in values)
    if high - low < least:
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    axis.set_ylim(low, 1.0 if max(values) <= 1.0 < high else high)


def pairs(
    table: Table, labels: list[str], first: str, second: str, unit: str, scale: float = 1.0
) -> str:
    """Two bars for each row: what was expected or predicted, and what was measured."""
    both = zip(table.rows, labels, strict=True)
    found = [one for one in both if one[0][first] is not None or one[0][second] is not None][::-1]
    if not found:
        return ""
    with figure_of(1.1 + 0.42 * len(found)) as (figure, axis):
        for place, (row, _) in enumerate(found):
            for name, up, fill, alpha in ((first, 0.19, INK, 0.45), (second, -0.19, COLOURS[0], 1)):
                value = (row[name] or 0.0) / scale
                axis.barh(place + up, value, height=0.34, color=fill, alpha=alpha)
                text = f"{value:.4g}" if row[name] is not None else "none"
                if place == len(found) - 1:
                    text += f"  {name.rsplit('_', 1)[0].replace('_', ' ')}"
                note(axis, text, (value, place + up), (4, 0), fontsize=8)
        _finish(axis, [label for _, label in found], unit, 1.2)
        return as_svg(figure)


def bars(table: Table, column: str, unit: str, low: str = "", high: str = "") -> str:
    """A bar a run, with the confidence interval where there is one."""
    rows = table.rows[::-1]
    with figure_of(1.0 + 0.34 * len(rows)) as (figure, axis):
        for place, row in enumerate(rows):
            value = right = row[column] or 0.0
            axis.barh(place, value, height=0.62, color=COLOURS[0], linewidth=0)
            if high and row[high] is not None:
                # no time is negative, whatever the interval of a few values says
                reach = [[value - max(0.0, row[low])], [row[high] - value]]
                axis.errorbar(value, place, xerr=reach, color=INK, capsize=3, linewidth=1.2)
                right = row[high]
            note(axis, f"{value:.4g}", (right, place))
        of_interval = _of_interval(rows, high) if high else ""
        _finish(axis, [row["run"] for row in rows], unit + of_interval, 1.1)
        return as_svg(figure)


def _finish(axis: Any, names: list[str], unit: str, room: float) -> None:
    """Names beside horizontal bars, and room for the numbers at their ends."""
    axis.set_yticks(range(len(names)), [plain(name) for name in names])
    axis.set_xlabel(unit)
    axis.set_xlim(0, axis.get_xlim()[1] * room)
    axis.grid(axis="y", visible=False)
