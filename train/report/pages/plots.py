"""Tables become vector figures: labelled axes with units, colours for the colour-blind."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pandas as pd

from train.records.summary import PHASES
from train.report.data.scaling import DOUBTFUL
from train.report.pages.drawing import (
    COLOURS,
    INK,
    LINE_IN,
    MARKERS,
    as_svg,
    colours,
    dashes,
    figure_of,
    legend,
    text,
    whole_numbers,
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
NAME_LETTERS = 24  # of a bar's name in a line


def losses(table: pd.DataFrame) -> str:
    """Loss over steps, and below it how far each run is from its reference."""
    labels, apart = list(table["run"].unique()), table[table["difference"].notna()]
    rows = 1 if apart.empty else 2
    how = {"height_ratios": [3, 2]} if rows == 2 else {}
    with figure_of(2.5 + 1.6 * (rows - 1), nrows=rows, sharex=True, **how) as (figure, axes):
        colour, lines = colours(labels), []
        for number, (label, mine) in enumerate(table.groupby("run", sort=False)):
            style = {"color": colour[label], "linestyle": dashes(number)}
            wide = {"linewidth": 2.6 if number == 0 else 1.5, "label": label}
            marker = "o" if len(mine) < 3 else None
            lines += axes[0][0].plot(mine["step"], mine["loss"], **style, **wide, marker=marker)
            if (own := apart[apart["run"] == label]).empty:
                continue
            # a gap where there is no difference: a log axis has no zero
            gaps = [abs(one) or math.nan for one in own["difference"]]
            axes[-1][0].plot(own["step"], gaps, **style, marker="o", markersize=2.5)
        axes[0][0].set_ylabel("loss")
        if rows == 2:
            is_zero = apart["difference"] == 0
            note = "\n(none: a gap)" if is_zero.any() else ""
            axes[1][0].set_ylabel(f"difference to\nthe reference{note}")
            if is_zero.all():
                axes[1][0].set(ylim=(-1, 1), yticks=[0])
            else:
                axes[1][0].set_yscale("log")
        axes[-1][0].set_xlabel("step")
        whole_numbers(axes[-1][0])
        legend(figure, lines)
        return as_svg(figure)


@contextmanager
def _named(names: Sequence[str], unit: str, bars: int = 1) -> Iterator[tuple[Any, Any]]:
    """A figure, and its axis with a row for each name; values stand at the ends of bars."""
    names = [text(name, NAME_LETTERS) for name in names]
    lines = [max(bars, 1 + name.count("\n")) for name in names]
    with figure_of(0.7 + LINE_IN * sum(lines) + 0.12 * len(names)) as (figure, axes):
        axis = axes[0][0]
        yield figure, axis
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_xlim(0, 1.35 * axis.dataLim.x1 or 1)  # with room for what stands at the ends
        axis.set_xlabel(text(unit, 36))
        axis.spines["left"].set_visible(False)
        axis.tick_params(left=False)
        axis.grid(visible=False)
        axis.locator_params(axis="x", nbins=4)


def bars(
    table: pd.DataFrame,
    sizes: pd.DataFrame,
    fills: Sequence[str],
    labels: Sequence[str],
    unit: str,
    ends: Sequence[str] = (),
) -> str:
    """A bar a run, its parts stacked: a column of `sizes` and a colour each.

    `ends` are the table's columns with an interval's ends; None where nothing was measured twice.
    """
    whole = sizes.sum(axis=1)
    low, high = (table[name].astype(float) for name in ends) if ends else (whole * math.nan,) * 2
    if (known := high.notna()).any():
        unit += " (mean, 95 % interval" + (")" if known.all() else " where known)")
    with _named(list(table["run"]), unit) as (figure, axis):
        at, drawn = range(len(table)), []
        for (name, part), left, fill in zip(
            sizes.items(), (sizes.cumsum(axis=1) - sizes).T.to_numpy(), fills, strict=True
        ):
            drawn.append(axis.barh(at, part, left=left, color=fill, height=0.7, label=name))
        # no time is negative, whatever the interval of a few values says
        reach = [(whole - low.clip(lower=0)).clip(lower=0), (high - whole).clip(lower=0)]
        style = {"ecolor": INK, "capsize": 3, "elinewidth": 1.2}
        ended = axis.barh(at, whole, xerr=[one.fillna(0) for one in reach], alpha=0,
                          error_kw=style if known.any() else {"alpha": 0})  # fmt: skip
        axis.bar_label(ended, labels=labels, padding=4)
        if len(drawn) > 1:
            legend(figure, drawn)
    return as_svg(figure)


def seconds(table: pd.DataFrame) -> str:
    """A bar a run, its phases stacked, with the confidence interval of the mean."""
    sizes = table[[f"{phase}_s" for phase in PHASE_COLOURS]].astype(float)
    sizes.columns = list(PHASE_COLOURS)
    unknown = sizes.isna().any(axis=1)  # then all of it is what no phase accounts for
    sizes = sizes.where(~unknown, 0.0, axis=0)
    sizes["other"] = sizes["other"].where(~unknown, table["mean_s"]).astype(float)
    fills, labels = list(PHASE_COLOURS.values()), list(map(duration, table["mean_s"]))
    return bars(table, sizes, fills, labels, "seconds per iteration", ("low_s", "high_s"))


def values(table: pd.DataFrame, column: str, unit: str, *ends: str) -> str:
    """A bar a run, with the confidence interval where there is one."""
    sizes = table[[column]].astype(float).fillna(0)
    written = duration if unit.startswith("seconds") else number
    return bars(table, sizes, COLOURS[:1], list(map(written, sizes[column])), unit, ends)


def number(value: float) -> str:
    """What stands at a bar's end; never as a power of ten where digits can be read."""
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if value >= 1000 else f"{value:.4g}"


def pairs(names: Sequence[str], table: pd.DataFrame, unit: str) -> str:
    """Two bars for each name: what was expected, and what was observed, the table's columns."""
    with _named(names, unit, bars=2) as (figure, axis):
        drawn = []
        for label, column, fill, up in zip(
            ("expected", "observed"), table, (EXPECTED, COLOURS[0]), (-0.2, 0.2), strict=True
        ):
            at = [row + up for row in range(len(names))]
            one = axis.barh(at, table[column].fillna(0), height=0.38, color=fill, label=label)
            axis.bar_label(one, [number(v) if v == v else "none" for v in table[column]], padding=4)
            drawn.append(one)
        legend(figure, drawn)
    return as_svg(figure)


def speedup(table: pd.DataFrame) -> str:
    """Speed-up and efficiency over workers; panels for each base, which is named.

    A series has the points that were measured and no other; hollow ones are doubtful. The dashed
    line is what the model of cost says of it.
    """
    from matplotlib.lines import Line2D

    bases, series = list(table["base"].unique()), list(table["series"].unique())
    with figure_of(2.1 * len(bases), nrows=len(bases), ncols=2) as (figure, axes):
        colour = colours(series, ink_first=False)
        style = {name: (colour[name], MARKERS[n % len(MARKERS)]) for n, name in enumerate(series)}
        for base, panels in zip(bases, axes, strict=True):
            _against(base, panels, table[table["base"] == base], style)
        lines = [Line2D([], [], color=c, marker=m, label=name) for name, (c, m) in style.items()]
        lines.append(Line2D([], [], color=INK, linewidth=1, linestyle=(0, (2, 2)), label="ideal"))
        if table["predicted"].notna().any():
            lines.append(Line2D([], [], color=INK, linestyle=(0, (5, 3)), label="predicted"))
        if (table["efficiency"] > DOUBTFUL).any():
            lines.append(Line2D([], [], color=INK, marker="o", markerfacecolor="none",
                                linestyle="none", label="doubtful: above ideal"))  # fmt: skip
        legend(figure, lines)
        return as_svg(figure)


def _against(
    base: str, panels: Any, table: pd.DataFrame, style: dict[str, tuple[str, str]]
) -> None:
    left, right = panels
    few, most = table["base_workers"].iloc[0], table["workers"].max()
    ideal = {"color": INK, "linewidth": 1, "linestyle": (0, (2, 2))}
    left.plot([few, most], [1, most / few], **ideal)
    right.axhline(1, **ideal)
    for number, (name, rows) in enumerate(table.groupby("series", sort=False)):
        colour, shape = style[str(name)]
        mine = rows.drop(columns=["series", "run", "base"]).astype(float).sort_values("workers")
        mine["efficiency_predicted"] = mine["predicted"] / mine["ideal"]
        at = {"marker": shape, "markersize": 8 - min(3, number), "linestyle": "", "clip_on": False}
        doubtful = mine["efficiency"] > DOUBTFUL
        for axis, column, expected in (
            (left, "speedup", "predicted"), (right, "efficiency", "efficiency_predicted")
        ):  # fmt: skip
            x, y = mine["workers"], mine[column]
            axis.plot(x, y, color=colour)
            axis.plot(x, mine[expected], color=colour, linestyle=(0, (5, 3)))
            for fill, some in ((colour, ~doubtful), ("none", doubtful)):
                if some.any():
                    axis.plot(x[some], y[some], color=colour, markerfacecolor=fill, **at)
    for axis, title in ((left, "speed-up"), (right, "efficiency")):
        axis.set(xlabel="workers", ylabel=title, ylim=(0, None))
        whole_numbers(axis)
    left.set_title(text(f"against {base}", 18), loc="left", fontsize="medium")


def metrics(table: pd.DataFrame) -> str:
    """A panel for each metric, over epochs."""
    names, labels = list(table["metric"].unique()), list(table["run"].unique())
    with figure_of(1.7 * len(names) + 0.2, nrows=len(names), sharex=True) as (figure, axes):
        colour, lines = colours(labels), {}
        for axis, metric in zip(axes[:, 0], names, strict=True):
            of_metric = table[table["metric"] == metric]
            for label, mine in of_metric.groupby("run", sort=False):
                number, x = (
                    labels.index(label),
                    [e or s for e, s in zip(mine["epoch"], mine["step"], strict=True)],
                )
                lines[label], *_ = axis.plot(
                    x, mine["value"], color=colour[label], linestyle=dashes(number), label=label,
                    marker=MARKERS[number % len(MARKERS)], markersize=4, clip_on=False,
                )  # fmt: skip
            axis.yaxis.set_major_formatter("{x:.4g}")
            axis.set_ylabel(text(metric, 18))
            whole_numbers(axis)
        axes[-1][0].set_xlabel("epoch")
        legend(figure, list(lines.values()))
        return as_svg(figure)


def throughput(table: pd.DataFrame) -> str:
    """Samples per second of all workers together, by workers, in a colour for each precision."""
    table = table.sort_values("workers", kind="stable", ignore_index=True)
    rates, precision = table["samples_per_s"].astype(float), table["precision"].fillna("")
    sizes = pd.DataFrame({one: rates.where(precision == one, 0.0) for one in precision.unique()})
    fills = [COLOURS[at % len(COLOURS)] for at in range(sizes.shape[1])]
    return bars(table, sizes, fills, list(map(number, rates)), "samples per second, all workers")
