"""Draw tables as vector figures in two ways: lines over a column, and a bar for each row.

For another figure, add a `Panel` or a call of `bars`: what is drawn is data.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from train.records.schema import PHASES
from train.report.data.event_tables import sent
from train.report.data.over_workers import has_points
from train.report.data.quantities import unit_of_seconds, with_origin
from train.report.pages import drawing
from train.report.pages.drawing import COLOURS, DASHES, INK, MARKERS, text

PHASE_PALETTE = ("#E69F00", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#999999")
PHASE_COLOURS = dict(zip([*PHASES, "other"], PHASE_PALETTE, strict=True))
EVALUATION_PALETTE = ("#0072B2", "#E69F00", "#D55E00", "#999999")
EVALUATION_COLOURS = dict(
    zip(("predict", "metric", "sync", "other"), EVALUATION_PALETTE, strict=True)
)
EXPECTED = "#8A8F98"  # for values that were not measured; 3:1 on light and on dark
NAME_LETTERS, NAME_IN = 24, 0.16  # of a bar's name: letters per line, and height of a line
PANEL_IN = 2.1
MOST_BARS = 18  # in a figure: with more, its text would be below 7 pt on paper
MOST_NAME_LINES = 36  # of all bars in a figure, for the same reason
MOST_POINTS = 30  # of a line with markers
MOST_LINES = 6  # over workers: with more, bars are easier to tell apart
SAME_LINE_PART = 0.01  # of the range of losses: a smaller difference cannot be seen
MEANS = 40  # of a smoothed curve: this many do not overlap
ROUNDING = 1e-6  # of the largest loss: a smaller difference comes from a few roundings
ALIKE = 0.05  # of the longest bar: bars that differ less are not worth comparing
SMALLEST_VISIBLE_PART = 0.01  # of the longest bar: a shorter part of a bar cannot be seen


@dataclass(frozen=True)
class Panel:
    """One diagram: column `y` of a table over column `x`, a line for each value of column `by`."""

    table: pd.DataFrame
    x: str
    y: str
    label: str  # of the axis, with its unit
    by: str = "run"
    look: str = ""  # the column that gives a line its look and its name; "": `by`
    title: str = ""
    ideal: tuple[tuple[float, float], ...] = ()  # points of a thin line
    is_log: bool = False  # with gaps at zero values
    from_zero: bool = False
    mean_of: int = (
        1  # how many steps each point of the line averages; the steps are drawn behind it
    )


def lines(rows: Sequence[Sequence[Panel]], names: Sequence[Any] = ()) -> str:
    """Draw the panels of each row side by side; a line looks the same in all of them.

    It also looks the same in other figures that get the same `names` of lines.
    """
    every = [panel for panels in rows for panel in panels]
    own = (name for row in every for name in row.table[row.look or row.by])
    names = list(dict.fromkeys([*names, *own]))
    size = {"nrows": len(rows), "ncols": len(rows[0]), "sharex": "col"}
    with drawing.figure_of(PANEL_IN * len(rows), **size) as (figure, axes):
        handles: dict[str, Any] = {}
        for axis, panel in zip(axes.flat, every, strict=True):
            _draw(axis, panel, names)
            found, labels = axis.get_legend_handles_labels()
            handles |= dict(zip(labels, found, strict=True))
        for axis, panel in zip(axes[-1], rows[-1], strict=True):
            axis.set_xlabel(panel.x)
            drawing.whole_numbers(axis)  # after all panels above, which share this axis
            if panel.from_zero:  # over workers, with ticks at the measured numbers
                axis.set_xticks(sorted(panel.table[panel.x].unique()))
        in_order = sorted(handles, key=lambda label: label not in names)  # series before the rest
        drawing.legend(figure, [handles[label] for label in in_order])
        return drawing.as_svg(figure)


def _draw(axis: Any, panel: Panel, names: Sequence[Any]) -> None:
    if panel.ideal:
        thin = {"color": INK, "linewidth": 1, "linestyle": (0, (2, 2)), "label": "ideal"}
        axis.plot(*zip(*panel.ideal, strict=True), **thin)
    of_look = panel.table.groupby(panel.look or panel.by)[panel.by].nunique()
    for _, rows in panel.table.groupby(panel.by, sort=False):
        rows, name = rows.sort_values(panel.x), rows[panel.look or panel.by].iloc[0]
        number = names.index(name)
        x, y = rows[panel.x].astype(float), rows[panel.y].astype(float)
        if panel.is_log:  # such an axis has no zero
            y = y.abs().where(y != 0)
        # the wide first line is visible below others; several wide lines would hide each other
        width = 2.6 if number == 0 and of_look[name] == 1 else 1.5
        colour = {"color": COLOURS[number % len(COLOURS)], "linewidth": width}
        # with colours, the first 36 lines all look different; an ideal line is dashed, so others
        # are not
        dashes = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        marker = marker if len(rows) <= MOST_POINTS else ""
        is_plain = panel.ideal or panel.from_zero
        look = {"linestyle": "-" if is_plain else dashes, "marker": marker, "clip_on": False}
        means = y.rolling(panel.mean_of, center=True, min_periods=1).mean()
        if panel.mean_of > 1:
            axis.plot(x, y, color=colour["color"], linewidth=0.8, alpha=0.35)
        axis.plot(x, means, label=name, markersize=5, **look, **colour)
        drawing.hover(axis, x, y, name)
    axis.set_ylabel(text(panel.label, 18))
    axis.set_title(text(panel.title), loc="left", fontsize="medium")
    if panel.ideal or panel.from_zero:
        axis.set_ylim(0, None)
    if panel.is_log:
        axis.set_yscale("log")
    else:
        axis.yaxis.set_major_formatter(drawing.as_tick)


def losses(table: pd.DataFrame) -> dict[str, str]:
    """Draw loss over steps and, in another figure, the differences from references.

    Differences that rounding alone causes are not drawn. With many runs, the runs of a series look
    the same. Curves of many steps are smoothed.
    """
    table, look = _with_look(table)
    steps = table.groupby("run").size().max()
    mean_of = int(steps // MEANS) | 1 if steps > MOST_POINTS else 1
    label = f"loss, mean of {mean_of} steps" if mean_of > 1 else "loss"
    shown, title = _once(table, "step", "loss")
    options: dict[str, Any] = {"look": look, "title": title, "mean_of": mean_of}
    names = table[look].unique()
    panel = Panel(shown, "step", "loss", label, **options)
    found = {"first_losses": lines([[panel]], names)}
    apart = table[table["difference"].notna()]
    gaps = apart["difference"].abs()
    if gaps.max() > ROUNDING * table["loss"].abs().max():
        bases = apart["reference"].unique()
        base = bases[0] if len(bases) == 1 else "its reference"
        note = "; no point: equal" if (gaps == 0).any() else ""
        power = np.log10(gaps.astype(float).where(gaps != 0))  # the axis is logarithmic
        shown, hidden = _once(apart.assign(power=power), "step", "power")
        title = f"|loss \N{MINUS SIGN} loss of {base}|{note}{hidden and '; ' + hidden}"
        options = {"look": look, "title": title, "is_log": True}
        panel = Panel(shown, "step", "difference", "difference", **options)
        found["loss_differences"] = lines([[panel]], names)
    return found


def _once(table: pd.DataFrame, x: str, y: str) -> tuple[pd.DataFrame, str]:
    """Return the table without curves that coincide with earlier ones, and a title with a count."""
    runs = table.loc[table[y].notna(), "run"].unique()
    curves = table.astype({y: float}).pivot_table(index=x, columns="run", values=y, aggfunc="last")
    most = SAME_LINE_PART * (curves.max(axis=None) - curves.min(axis=None))
    kept: list[Any] = []
    for run in runs:
        curve = curves[run].dropna()
        if not any(((curves[other] - curve).abs()[curve.index] <= most).all() for other in kept):
            kept.append(run)
    hidden = len(runs) - len(kept)
    if not hidden:
        return table, ""
    curve = "1 more curve lies" if hidden == 1 else f"{hidden} more curves lie"
    return table[table["run"].isin(kept)], f"{curve} on {'this one' if len(kept) == 1 else 'these'}"


def _with_look(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The table, and the first column whose values are few enough to look different."""
    for column in ("run", "series", "name"):
        values = table.get(column)
        if values is not None and values.notna().all() and values.nunique() <= MOST_LINES:
            return table, column
    return table.assign(name="each run"), "name"


def metrics(table: pd.DataFrame) -> str:
    """Draw a panel for each metric over epochs, or over steps if epochs were not counted."""
    table = table.assign(epoch=table["epoch"].where(table["epoch"].astype(bool), table["step"]))
    table, look = _with_look(table)
    panels = []
    for name, own in table.groupby("metric", sort=False):
        shown, title = _once(own, "epoch", "value")
        panels.append([Panel(shown, "epoch", "value", str(name), look=look, title=title)])
    return lines(panels, table[look].unique())


def speedup(table: pd.DataFrame) -> dict[str, str]:
    """Draw the speed-up of all series over workers, with a figure for each size of the base.

    Only measured points are drawn; those over a base in doubt are left out.
    """
    table, found = with_origin(table), dict[str, str]()
    for few, own in table.groupby("base_workers", sort=False):
        most, (base, *others) = own["workers"].max(), own["base"].unique()
        several = f"{few} worker{'' if few == 1 else 's'} with the same batch"
        title = f"over {several if others else base}"
        options: dict[str, Any] = {"by": "series", "title": title}
        ideal = ((few, 1), (most, most / few))
        name = f"speedup_{len(found) + 1}" if found else "speedup"
        if own["series"].nunique() > MOST_LINES:
            in_order = own.sort_values(["series", "workers"], kind="stable").set_index("run")
            found |= bars(name, in_order[["speedup"]].astype(float), f"speed-up {title}")
            continue
        panel = Panel(own, "workers", "speedup", "speed-up", ideal=ideal, **options)
        found[name] = lines([[panel]], table["series"].unique())
    return found


def over_x(table: pd.DataFrame, x: str, charts: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Draw a figure for each chart, by name: its column over the column x, with its axis label.

    Many series are drawn as bars, with a row for each run.
    """
    found: dict[str, str] = {}
    for name, (column, label) in charts.items():
        known = table[table[column].notna()] if column in table else table[:0]
        if not has_points(known, x):
            continue
        if known["series"].nunique() > MOST_LINES:
            in_order = known.sort_values(["series", x], kind="stable").set_index("run")
            found |= bars(name, in_order[[column]].astype(float), label)
        else:
            found[name] = lines([[Panel(known, x, column, label, by="series", from_zero=True)]])
    return found


def bars(
    name: str,
    sizes: pd.DataFrame,
    unit: str,
    *,
    fills: Sequence[str] = COLOURS,
    labels: Sequence[str] = (),
    ends: pd.DataFrame | None = None,
    beside: bool = False,
    room: float = 1.35,
) -> dict[str, str]:
    """Draw figures of at most `MOST_BARS` rows each, all on one scale; return them by name.

    Each row of `sizes`, named by the index, is a bar: its parts are the columns, stacked or
    `beside` each other. Values, or `labels` if given, are printed at the ends. `ends` has the ends
    of intervals in two columns. A figure has space for `room` times the longest bar, to fit the
    texts; the axis ends with the bars. Bars that are all alike are not drawn.
    """
    from matplotlib.ticker import MaxNLocator

    whole = sizes.sum(axis=1)
    labels = labels or drawing.column(whole)
    ends = pd.DataFrame(index=sizes.index, columns=["low_s", "high_s"]) if ends is None else ends
    longest = pd.concat([sizes if beside else whole, ends.astype(float)]).max(axis=None)
    has_parts = beside or ((sizes > 0).sum(axis=1) > 1).any()
    if not has_parts and whole.max() - whole.min() <= ALIKE * whole.max():
        return {}
    places, found = drawing.decimals(sizes.to_numpy().flat), {}
    highest = max((1 + text(size, NAME_LETTERS).count("\n") for size in sizes.index), default=1)
    most = max(1, min(MOST_BARS, MOST_NAME_LINES // highest))
    most = math.ceil(len(sizes) / max(1, math.ceil(len(sizes) / most)))  # spread evenly
    for number, at in enumerate(range(0, len(sizes), most or 1), start=1):
        rows = slice(at, at + most)
        names = [text(size, NAME_LETTERS) for size in sizes.index[rows]]
        parts = sizes[rows].set_axis(names)
        heights = [max(len(sizes.columns) * beside, 1 + one.count("\n")) for one in names]
        with drawing.figure_of(0.7 + NAME_IN * sum(heights) + 0.08 * len(names)) as (figure, axes):
            axis = axes[0][0]
            look = {"width": 0.76, "color": list(fills), "legend": False}
            parts.plot.barh(ax=axis, stacked=not beside, **look)
            drawn, about = list(axis.containers), ""
            if beside:
                for bar, values in zip(drawn, parts.T.to_numpy(), strict=True):
                    axis.bar_label(
                        bar, [drawing.in_digits(one, places) for one in values], padding=4
                    )
            else:
                about = _intervals(axis, whole[rows], ends[rows], labels[rows])
            if len(drawn) > 1:
                drawing.legend(figure, drawn)
            axis.set_ylim(len(names) - 0.4, -0.6)
            axis.set_xlim(0, room * longest or 1)  # with space for the text at the ends
            axis.set_xlabel(text(unit + about, 36), loc="left")
            axis.spines["left"].set_visible(False)
            axis.spines["bottom"].set_bounds(0, longest or 1)
            axis.tick_params(left=False)
            axis.grid(visible=False)
            ticks = MaxNLocator(nbins=3).tick_values(0, longest or 1)
            axis.set_xticks([tick for tick in ticks if 0 <= tick <= longest * 1.001])
            axis.xaxis.set_major_formatter(drawing.as_tick)
            found[name + (f"_{number}" if number > 1 else "")] = drawing.as_svg(figure)
    return found


def _intervals(axis: Any, whole: pd.Series, ends: pd.DataFrame, labels: Sequence[str]) -> str:
    """Draw the known intervals and `labels`; return a text about them for the axis."""
    if ends.isna().all(axis=None):
        axis.bar_label(axis.containers[-1], labels, padding=4)
        return ""
    low, high = ends.astype(float).to_numpy().T
    # `whole` is a little less than the mean where parts are too short to be seen
    reach = [(whole - low).fillna(0).clip(lower=0), (high - whole).fillna(0).clip(lower=0)]
    style = {"ecolor": INK, "capsize": 3, "elinewidth": 1.2}
    ended = axis.barh(range(len(whole)), whole, xerr=reach, alpha=0, error_kw=style)
    axis.bar_label(ended, labels, padding=4)
    about = "(mean, 95 % interval" + (" where known)" if ends.isna().any(axis=None) else ")")
    return " " + about.replace(" ", "\N{NO-BREAK SPACE}")  # on a line of its own


def phases(
    name: str, colours: Mapping[str, str], whole: str, of: str, table: pd.DataFrame
) -> dict[str, str]:
    """Draw bars of `whole` in parts, with the interval of the mean.

    Time that no phase accounts for is "other"; if any phase is unknown, all of the time is "other".
    """
    table = table.set_index("run")
    parts = table.reindex(
        columns=[f"{colour}_s" for colour in colours if colour != "other"]
    ).astype(float)
    parts = parts.where(~parts.isna().any(axis=1), 0.0)
    longest = table[whole].astype(float).max()
    # the legend should name no part that is too short to be seen: these parts become "other"
    seen = [part for part in parts if parts[part].max() > SMALLEST_VISIBLE_PART * longest]
    other = (table[whole].astype(float) - parts[seen].sum(axis=1)).clip(lower=0)
    sizes = (
        parts[seen].assign(other_s=other)
        if other.max() > SMALLEST_VISIBLE_PART * longest
        else parts[seen]
    )
    sizes = sizes if len(sizes.columns) else sizes.assign(other_s=other)
    sizes = sizes.rename(columns=lambda column: column.removesuffix("_s"))
    unit = unit_of_seconds([*table[whole], *table["high_s"]])
    return bars(
        name, sizes / unit.size, f"{unit.in_full} per {of}", fills=[colours[row] for row in sizes],
        labels=[
            f"{size} {unit.name}"
            for size in drawing.column(table[whole] / unit.size, is_time=True)
        ],
        ends=table[["low_s", "high_s"]].astype(float) / unit.size,
    )  # fmt: skip


seconds = partial(phases, "seconds", PHASE_COLOURS, "mean_s", "iteration")
evaluation = partial(phases, "evaluation", EVALUATION_COLOURS, "eval_s", "evaluation")


def memory(table: pd.DataFrame) -> dict[str, str]:
    """Draw the peak memory of one worker by precision; of its GPU if there is one."""
    on_gpu = table["peak_gpu_memory_bytes"].notna().any()
    column = "peak_gpu_memory_bytes" if on_gpu else "peak_memory_bytes"
    unit = f"MiB at most, one worker{', of its GPU' if on_gpu else ''}"
    sizes = by_kind(table.set_index("run"), column, "precision") / 2**20
    return bars("memory", sizes, unit)


def throughput(table: pd.DataFrame) -> dict[str, str]:
    """Draw samples per second of all workers together, by workers, with a colour per precision."""
    table = table.sort_values("workers", kind="stable").set_index("run")
    sizes = by_kind(table, "samples_per_s", "precision")
    return bars("throughput", sizes, "samples per second, all workers")


def by_kind(table: pd.DataFrame, column: str, kind: str) -> pd.DataFrame:
    """The values of `column` in one column per value of `kind`, so that each has its own colour."""
    values, kinds = table[column].astype(float), table[kind].fillna("")
    return pd.DataFrame({str(value): values.where(kinds == value, 0.0) for value in kinds.unique()})


def traffic(totals: pd.DataFrame) -> dict[str, str]:
    """Draw the expected bytes of all hosts of a run beside the counted bytes."""
    table = sent(totals).set_axis(["expected", "counted"], axis=1)
    unit, fills = "MB sent, all hosts and epochs", (EXPECTED, COLOURS[0])
    return bars("traffic", table, unit, fills=fills, beside=True)
