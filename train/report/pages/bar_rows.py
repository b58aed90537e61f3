"""Horizontal bars, each under its name and with its value at its end, in the figure's width."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from train.report.pages.drawing import (
    INK,
    TYPE_PT,
    as_svg,
    figure_of,
    is_slim,
    legend,
    plain,
    text_pt,
    width_pt,
    wrapped,
)

BAR_IN, LINE_IN, GAP_IN = 0.19, 0.17, 0.12
SIDES_PT = 16.0  # beside the axes: half a tick's label, and the figure's edges


@dataclass
class Bar:
    """One bar: its parts' sizes and colours from the left, and what is written at its end."""

    parts: list[tuple[float, str]]
    text: str
    interval: tuple[float, float] | None = None  # its lower and upper end
    middle: float = 0.0  # of the interval

    def end(self) -> float:
        return max(sum(size for size, _ in self.parts), self.interval[1] if self.interval else 0.0)


@dataclass
class BarRow:
    """One name and its bars; `apart`: there is a wider gap above it."""

    name: str
    bars: list[Bar] = field(default_factory=list)
    apart: bool = False


def draw(rows: Sequence[BarRow], unit: str, keys: dict[str, str]) -> str:
    """The figure; `keys` are names and colours for its legend.

    No line crosses a number: values are written at the bars' ends, so there is no grid.
    """
    from matplotlib.patches import Patch

    names = [wrapped(row.name, width_pt() - SIDES_PT) for row in rows]
    tall = [
        GAP_IN * (3 if row.apart else 1) + LINE_IN * (1 + name.count("\n")) + BAR_IN * len(row.bars)
        for row, name in zip(rows, names, strict=True)
    ]
    unit = wrapped(unit, width_pt() - SIDES_PT)
    with figure_of(sum(tall) + 0.45 + LINE_IN * unit.count("\n")) as (figure, axis):
        if keys:
            handles = [Patch(color=fill, label=name) for name, fill in keys.items()]
            height = figure.get_figheight() + legend(figure, handles)
            figure.set_figheight(height)
        axis.set_xlim(0, _reach([bar for row in rows for bar in row.bars]))
        axis.set_ylim(sum(tall) + 0.07, 0)  # inches, downwards
        below = 0.0
        for row, name, height in zip(rows, names, tall, strict=True):
            below += height
            top = below - BAR_IN * len(row.bars)
            for number, bar in enumerate(row.bars):
                _draw_bar(axis, bar, top + BAR_IN * (number + 0.5))
            axis.annotate(
                plain(name), (0, top), (1, 2), textcoords="offset points", va="bottom", ha="left"
            )
        axis.set_xlabel(plain(unit))
        axis.set_yticks([])
        axis.spines["left"].set_visible(False)
        axis.grid(visible=False)
        axis.locator_params(axis="x", nbins=4 if is_slim() else 8)
        return as_svg(figure)


def _draw_bar(axis: Any, bar: Bar, place: float) -> None:
    left = 0.0
    for size, fill in bar.parts:
        axis.barh(place, size, left=left, height=0.88 * BAR_IN, color=fill, linewidth=0)
        left += size
    if bar.interval:
        low, high = bar.interval
        reach = [[bar.middle - low], [high - bar.middle]]
        axis.errorbar(bar.middle, place, xerr=reach, color=INK, capsize=3, linewidth=1.2)
    axis.annotate(
        plain(bar.text),
        (bar.end(), place),
        (5, 0),
        textcoords="offset points",
        va="center_baseline",
    )


def _reach(bars: Sequence[Bar]) -> float:
    """The end of the axis, so far that all values fit beside their bars."""
    room = width_pt() - SIDES_PT
    ends = [bar.end() / max(0.2, 1 - (text_pt(bar.text, TYPE_PT) + 8) / room) for bar in bars]
    return max(ends, default=0.0) or 1.0
