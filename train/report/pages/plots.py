"""Tables become vector figures in two ways: lines over a column, and a bar for each row.

Another figure is another `Panel`, or another call of `bars`: what is drawn is data.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from train.records.summary import PHASES
from train.report.data.event_tables import add_up
from train.report.data.scaling import DOUBTFUL
from train.report.pages import drawing
from train.report.pages.drawing import COLOURS, DASHES, INK, LINE_IN, MARKERS, text
from train.report.pages.units import duration

OF_PHASES = ("#E69F00", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#999999")
PHASE_COLOURS = dict(zip([*PHASES, "other"], OF_PHASES, strict=True))
EXPECTED = "#8A8F98"  # of what was not measured; 3:1 on light and on dark
NAME_LETTERS = 24  # of a bar's name in a line
PANEL_IN = 2.1
MOST_POINTS = 30  # of a line, which has markers up to so many


@dataclass(frozen=True)
class Panel:
    """One diagram: column `y` of a table over column `x`, a line for each value of column `by`."""

    table: pd.DataFrame
    x: str
    y: str
    label: str  # of the axis, with its unit
    by: str = "run"
    title: str = ""
    predicted: str = ""  # a column that is drawn dashed, in the colour of the line
    hollow: str = ""  # a column that is true of doubtful points
    ideal: tuple[tuple[float, float], ...] = ()  # points of a thin line
    is_log: bool = False  # with gaps where a value is zero


def lines(rows: Sequence[Sequence[Panel]]) -> str:
    """The panels of each row side by side; a line has one look in all of them."""
    every = [panel for panels in rows for panel in panels]
    names = list(dict.fromkeys(name for one in every for name in one.table[one.by]))
    size = {"nrows": len(rows), "ncols": len(rows[0]), "sharex": "col"}
    with drawing.figure_of(PANEL_IN * len(rows), **size) as (figure, axes):
        handles: dict[str, Any] = {}
        for axis, panel in zip(axes.flat, every, strict=True):
            _draw(axis, panel, names)
            found, labels = axis.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        for axis, panel in zip(axes[-1], rows[-1], strict=True):
            axis.set_xlabel(panel.x)
        in_order = sorted(handles, key=lambda label: label not in names)  # series before the rest
        drawing.legend(figure, [handles[label] for label in in_order])
        return drawing.as_svg(figure)


def _draw(axis: Any, panel: Panel, names: Sequence[Any]) -> None:
    if panel.ideal:
        thin = {"color": INK, "linewidth": 1, "linestyle": (0, (2, 2)), "label": "ideal"}
        axis.plot(*zip(*panel.ideal, strict=True), **thin)
    for name, rows in panel.table.groupby(panel.by, sort=False):
        number, rows = names.index(name), rows.sort_values(panel.x)
        x, y = rows[panel.x].astype(float), rows[panel.y].astype(float)
        if panel.is_log:  # such an axis has no zero
            y = y.abs().where(y != 0)
        colour = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1.5 if number else 2.6}
        # with the colours, no two of the first 36 look the same; beside an ideal dashes say more
        dashes = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
        marker = MARKERS[number % len(MARKERS)] if len(rows) <= MOST_POINTS else ""
        look = {"linestyle": "-" if panel.ideal else dashes, "marker": marker, "clip_on": False}
        hollow = rows[panel.hollow].astype(bool) if panel.hollow else rows[panel.x].isna()
        solid = [at for at, is_hollow in enumerate(hollow) if not is_hollow]
        axis.plot(x, y, label=name, markevery=solid, markersize=5, **look, **colour)
        if panel.predicted and rows[panel.predicted].notna().any():
            guess = rows[panel.predicted].astype(float)
            axis.plot(x, guess, label="predicted", linestyle=(0, (5, 3)), **colour)
        if hollow.any():
            look |= {"linestyle": "none", "markerfacecolor": "none"}
            axis.plot(x[hollow], y[hollow], label="doubtful: above ideal", **look, **colour)
    axis.set_ylabel(text(panel.label, 18))
    axis.set_title(text(panel.title, 18), loc="left", fontsize="medium")
    drawing.whole_numbers(axis)
    if panel.ideal:
        axis.set_ylim(0, None)
    if panel.is_log:
        axis.set_yscale("log")
    else:
        axis.yaxis.set_major_formatter("{x:.4g}")


def losses(table: pd.DataFrame) -> str:
    """Loss over steps, and below it how far each run is from its reference, if any is."""
    apart = table[table["difference"].notna()]
    rows = [[Panel(table, "step", "loss", "loss")]]
    if (apart["difference"] != 0).any():
        note = " (none: a gap)" if (apart["difference"] == 0).any() else ""
        label = f"difference to the reference{note}"
        rows.append([Panel(apart, "step", "difference", label, is_log=True)])
    return lines(rows)


def metrics(table: pd.DataFrame) -> str:
    """A panel for each metric, over epochs; over steps where these were not counted."""
    table = table.assign(epoch=table["epoch"].where(table["epoch"].astype(bool), table["step"]))
    of_metrics = table.groupby("metric", sort=False)
    return lines([[Panel(own, "epoch", "value", str(name))] for name, own in of_metrics])


def speedup(table: pd.DataFrame) -> str:
    """Speed-up and efficiency over workers; a row of panels for each base, which is named.

    A series has the points that were measured and no other; hollow ones are doubtful. The dashed
    line is what the model of cost says of it.
    """
    table = table.assign(doubtful=table["efficiency"] > DOUBTFUL)
    table["efficiency_predicted"] = table["predicted"].astype(float) / table["ideal"].astype(float)
    rows = []
    for base, own in table.groupby("base", sort=False):
        few, most = own["base_workers"].iloc[0], own["workers"].max()
        of_gain, of_efficiency = ((few, 1), (most, most / few)), ((few, 1), (most, 1))
        how: dict[str, Any] = {"by": "series", "hollow": "doubtful"}
        rows.append([
            Panel(own, "workers", "speedup", "speed-up", title=f"against {base}",
                  predicted="predicted", ideal=of_gain, **how),
            Panel(own, "workers", "efficiency", "efficiency",
                  predicted="efficiency_predicted", ideal=of_efficiency, **how),
        ])  # fmt: skip
    return lines(rows)


def bars(
    names: Iterable[str],
    sizes: pd.DataFrame,
    unit: str,
    *,
    fills: Sequence[str] = COLOURS,
    labels: Iterable[str] | None = None,
    ends: pd.DataFrame | None = None,
    beside: bool = False,
) -> str:
    """A bar for each name: its parts, the columns of `sizes`, stacked, or `beside` each other.

    Values stand at the ends, or else `labels`. `ends` are those of an interval, in two columns;
    None where nothing was measured twice.
    """
    names, sizes = [text(name, NAME_LETTERS) for name in names], sizes.reset_index(drop=True)
    parts, whole = (sizes.shape[1] if beside else 1), sizes.sum(axis=1)
    heights = [max(parts, 1 + name.count("\n")) for name in names]
    with drawing.figure_of(0.7 + LINE_IN * sum(heights) + 0.12 * len(names)) as (figure, axes):
        axis, drawn, left = axes[0][0], [], whole * 0
        for number, (label, part) in enumerate(sizes.fillna(0).items()):
            at = sizes.index + (number - (parts - 1) / 2) * 0.4 * beside
            how = {"height": 0.76 / parts, "color": fills[number % len(fills)], "label": label}
            drawn.append(axis.barh(at, part, left=left, **how))
            if beside:
                axis.bar_label(drawn[-1], list(map(as_digits, sizes[label])), padding=4)
            else:
                left = left + part
        if not beside:
            unit += _intervals(axis, whole, ends, list(labels or map(as_digits, whole)))
        if len(drawn) > 1:
            drawing.legend(figure, drawn)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
        axis.set_xlim(0, 1.35 * axis.dataLim.x1 or 1)  # with room for what stands at the ends
        axis.set_xlabel(text(unit, 36))
        axis.spines["left"].set_visible(False)
        axis.tick_params(left=False)
        axis.grid(visible=False)
        axis.locator_params(axis="x", nbins=4)
        return drawing.as_svg(figure)


def _intervals(axis: Any, whole: Any, ends: pd.DataFrame | None, labels: list[str]) -> str:
    """Draw those that are known, and what stands behind them; what the axis says of them."""
    if ends is None or ends.isna().all(axis=None):
        axis.bar_label(axis.barh(whole.index, whole, alpha=0), labels=labels, padding=4)
        return ""
    # no time is negative, whatever the interval of a few values says
    low, high = ends.astype(float).clip(lower=0).to_numpy().T
    reach = [(whole - low).fillna(0).clip(lower=0), (high - whole).fillna(0).clip(lower=0)]
    style = {"ecolor": INK, "capsize": 3, "elinewidth": 1.2}
    ended = axis.barh(whole.index, whole, xerr=reach, alpha=0, error_kw=style)
    axis.bar_label(ended, labels=labels, padding=4)
    return " (mean, 95 % interval" + (" where known)" if ends.isna().any(axis=None) else ")")


def as_digits(value: float) -> str:
    """What stands at a bar's end; never as a power of ten where digits can be read."""
    if value != value:
        return "none"
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if value >= 1000 else f"{value:.4g}"


def seconds(table: pd.DataFrame) -> str:
    """A bar a run, its phases stacked, with the confidence interval of the mean."""
    sizes = table[[f"{phase}_s" for phase in PHASE_COLOURS]].astype(float)
    sizes.columns = list(PHASE_COLOURS)
    unknown = sizes.isna().any(axis=1)  # then all of it is what no phase accounts for
    sizes = sizes.where(~unknown, 0.0, axis=0)
    sizes["other"] = sizes["other"].where(~unknown, table["mean_s"]).astype(float)
    return bars(
        table["run"], sizes, "seconds per iteration", fills=list(PHASE_COLOURS.values()),
        labels=map(duration, table["mean_s"]), ends=table[["low_s", "high_s"]],
    )  # fmt: skip


def evaluation(table: pd.DataFrame) -> str:
    """Seconds of an evaluation of each run, with their interval."""
    return bars(
        table["run"], table[["eval_s"]].astype(float), "seconds per evaluation",
        labels=map(duration, table["eval_s"]), ends=table[["low_s", "high_s"]],
    )  # fmt: skip


def throughput(table: pd.DataFrame) -> str:
    """Samples per second of all workers together, by workers, in a colour for each precision."""
    table = table.sort_values("workers", kind="stable")
    rates = table["samples_per_s"].astype(float)
    sizes = by_kind(rates, table["precision"].fillna(""))
    return bars(table["run"], sizes, "samples per second, all workers")


def by_kind(values: Any, kinds: Any) -> pd.DataFrame:
    """A column for each kind, so that its bars have a colour of their own."""
    return pd.DataFrame({str(one): values.where(kinds == one, 0.0) for one in kinds.unique()})


def traffic(totals: pd.DataFrame) -> str:
    """Bytes that all hosts of a run should have sent, beside those that were counted."""
    sent = totals[totals["direction"] == "sent"].groupby("run", sort=False)
    table = sent[["expected_bytes", "observed_bytes"]].agg(add_up).astype(float) / 1e6
    table.columns = ["expected", "counted"]
    unit, fills = "MB sent, all hosts and epochs", (EXPECTED, COLOURS[0])
    return bars(table.index, table, unit, fills=fills, beside=True)
