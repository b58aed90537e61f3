"""Facts become vector figures: labelled axes with units, colours for the colour-blind."""

from collections.abc import Callable
from typing import Any

from train.measure.summary import PHASES
from train.report.drawing import (
    COLOURS,
    INK,
    as_svg,
    colours,
    dashes,
    figure_of,
    label_ends,
    marker,
    plain,
    whole_numbers,
)
from train.report.facts import Table

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
            style = {"color": colour[label], "linestyle": dashes(number)}
            upper.plot(x, y, linewidth=2.6 if number == 0 else 1.5, marker=marker(x), **style)
            ends.append((x[-1], y[-1], label, colour[label]))
        label_ends(upper, ends)
        upper.set_ylabel("loss")
        if rows == 2:
            _differences(axes[1][0], table, apart, colour)
        axes[-1][0].set_xlabel("step")
        whole_numbers(axes[-1][0])
        return as_svg(figure)


def _differences(axis: Any, table: Table, apart: list[str], colour: dict[str, str]) -> None:
    ends = []
    for number, label in enumerate(apart):
        mine = [row for row in table.select(run=label) if row["difference"]]
        x, y = [row["step"] for row in mine], [abs(row["difference"]) for row in mine]
        axis.plot(
            x,
            y,
            color=colour[label],
            linewidth=2.2 if number == 0 else 1.3,
            linestyle=dashes(number),
            marker=marker(x),
        )
        ends.append((x[-1], y[-1], label, colour[label]))
    axis.set_ylabel("difference to\nthe reference")
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
            axis.annotate(
                f"{row['mean_s']:.4g}",
                (right, place),
                (5, 0),
                textcoords="offset points",
                va="center",
            )
        names = [row["run"] for row in rows]
        _finish(axis, names, "seconds per iteration (mean, 95 % confidence interval)", 1.1)
        axis.set_ylim(-0.6, len(rows) - 0.4)
        _name_phases(axis)
        return as_svg(figure)


def _name_phases(axis: Any) -> None:
    """The phases' names in their colours above the bars, each beside a square of it."""
    from matplotlib.patches import Patch

    handles = [Patch(color=fill, label=phase) for phase, fill in PHASE_COLOURS.items()]
    axis.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        frameon=False,
        handlelength=0.9,
        handleheight=0.9,
        columnspacing=1.1,
        handletextpad=0.4,
        borderaxespad=0.1,
    )


def speedup(table: Table) -> str:
    """Speed-up and efficiency over workers, with the ideal; one line a series."""
    series = [
        name
        for name in table.unique("series")
        if any(row["ideal"] > 1 for row in table.select(series=name))
    ]
    with figure_of(3.1 + 0.1 * len(series), ncols=2, width_ratios=[1, 1]) as (
        figure,
        (left, right),
    ):
        colour = colours(series, ink_first=False)
        most = max(table.column("workers"))
        base = min(table.column("base_workers"))
        left.plot([base, most], [1, most / base], color=INK, linewidth=1, linestyle=(0, (2, 2)))
        left.annotate("ideal", (most, most / base), (-4, 4), textcoords="offset points", ha="right")
        right.axhline(1, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        ends = []
        for name in series:
            points = sorted(
                {
                    (base, 1.0, 1.0),
                    *(
                        (r["workers"], r["speedup"], r["efficiency"])
                        for r in table.select(series=name)
                    ),
                }
            )
            x = [point[0] for point in points]
            left.plot(
                x, [point[1] for point in points], color=colour[name], marker="o", markersize=4
            )
            right.plot(
                x, [point[2] for point in points], color=colour[name], marker="o", markersize=4
            )
            ends.append((x[-1], points[-1][2], name, colour[name]))
        for axis, title in ((left, "speed-up"), (right, "efficiency (speed-up / ideal)")):
            axis.set_xlabel("workers")
            axis.set_ylabel(title)
            axis.set_xticks(sorted({base, *table.column("workers")}))
            axis.set_ylim(bottom=0)
        label_ends(right, ends)
        return as_svg(figure)


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
                    style = {"color": colour[label], "linestyle": dashes(number)}
                    axis.plot(x, y, marker="o", markersize=4, **style)
                    ends.append((x[-1], y[-1], label, colour[label]))
            label_ends(axis, ends)
            axis.set_ylabel(plain(metric))
            whole_numbers(axis)
        axes[-1][0].set_xlabel("epoch")
        return as_svg(figure)


def pairs(
    table: Table,
    label: Callable[[dict[str, Any]], str],
    first: str,
    second: str,
    unit: str,
    scale: float = 1.0,
) -> str:
    """Two bars for each row: what was expected or predicted, and what was measured."""
    rows = [row for row in table.rows if row[first] is not None or row[second] is not None][::-1]
    with figure_of(1.1 + 0.42 * len(rows)) as (figure, axis):
        for place, row in enumerate(rows):
            for name, up, fill in ((first, 0.19, INK), (second, -0.19, COLOURS[0])):
                value = (row[name] or 0.0) / scale
                axis.barh(
                    place + up, value, height=0.34, color=fill, alpha=0.45 if fill == INK else 1
                )
                words = f"{value:.4g}" if row[name] is not None else "none"
                if place == len(rows) - 1:
                    words += f"  {name.rsplit('_', 1)[0].replace('_', ' ')}"
                axis.annotate(
                    words,
                    (value, place + up),
                    (4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
        _finish(axis, [label(row) for row in rows], unit, 1.2)
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
            style = {"textcoords": "offset points", "va": "center"}
            axis.annotate(f"{value:.4g}", (right, place), (5, 0), **style)
        _finish(axis, [row["run"] for row in rows], unit, 1.1)
        return as_svg(figure)


def _finish(axis: Any, names: list[str], unit: str, room: float) -> None:
    """Names beside horizontal bars, and room for the numbers at their ends."""
    axis.set_yticks(range(len(names)), [plain(name) for name in names])
    axis.set_xlabel(unit)
    axis.set_xlim(0, axis.get_xlim()[1] * room)
    axis.grid(axis="y", visible=False)
