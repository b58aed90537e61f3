"""Write quantities, and draw figures: without a screen, and narrow enough for a phone.

Text and axes take the colour of the page around them, so that a figure works on light and dark
pages. Text is never coloured, because small coloured text has too little contrast; a legend shows
the line or the bar beside the name.

Quantities are written as a person reads them: `6.7 ms`, `4.37 s`, `6.70 ± 0.12 ms`, `1 Gbit/s`.
All numbers of a column, or of a figure's bars, have the same unit and number of decimals.
"""

import io
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from train.report.data.quantities import Unit
from train.report.data.reader import numbers

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit")  # in the form of a testbed's --rate
INK = "#010203"  # stands for the page's own colour until the figure is placed
PRINT_INK, PAPER = "#1b1f24", "#ffffff"
# Okabe and Ito's colours without black and yellow; light ones are darkened, for 3:1 on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#BF6496", "#B07A00", "#3A93C9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = (
    "-", (0, (6, 3)), (3, (2, 2)), (0, (8, 2, 2, 2)), (1, (1, 2)), (4, (4, 4))
)  # fmt: skip
WIDTH_IN = 4.2  # on a phone 390 pixels wide, text of 9.5 points then has 11 pixels
LEGEND_PT = 8.5  # at least 7 on paper, where two figures are side by side
BESIDE_NAME_PT = 27  # in a legend: the line or bar, and space
LINE_IN, LETTERS = 0.18, 46  # height of a line of text, and letters across the figure
DIGITS = 4  # of the largest number of a column
MOST_DECIMALS = 6  # with more, a power of ten is easier to read
TIME_DECIMALS = 4  # a time too short for this, in the unit of its table, is shown with "<"
HOVER, MOST_HOVERED = "hover-", 60  # prefix of IDs of points with values; the most of a line
GROUPED_FROM = 10_000  # from here on, thousands are separated
STYLE = Path(__file__).with_name("figures.mplstyle")  # in which INK stands for colours


@contextmanager
def figure_of(height_in: float, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its axes, in an array of two dimensions."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(fname=STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in))
        yield figure, figure.subplots(squeeze=False, **options)


def as_svg(figure: Any) -> str:
    """The figure as an <svg> element; its text and axes have the page's colour."""
    out = io.StringIO()
    metadata = {"Date": None, "Creator": None}
    figure.savefig(out, format="svg", transparent=True, metadata=metadata)
    text = out.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    for axis in figure.axes:
        for points in axis.collections:
            text = _with_values(text, points, axis.get_xlabel())
    return text


def hover(axis: Any, x: Sequence[float], y: Sequence[float], name: str) -> None:
    """Add invisible points to a line, which show their values under the pointer."""
    every = [point for point in zip(x, y, strict=True) if math.isfinite(sum(point))]
    points = every[:: -(-len(every) // MOST_HOVERED) or 1]
    if points:
        gid = f"{HOVER}{axis.get_subplotspec().num1}-{len(axis.collections)}"
        look = {"s": 64, "color": INK, "alpha": 0, "clip_on": False}
        axis.scatter(*zip(*points, strict=True), label=f"_{name}", gid=gid, **look)


def _with_values(svg: str, points: Any, x_name: str) -> str:
    """Return the figure with a value as the title of each point that `hover` added."""
    begin = svg.find(f'<g id="{points.get_gid()}">')
    if begin < 0:
        return svg
    name = points.get_label().removeprefix("_")
    titles = (f"{name}, {x_name} {as_tick(x)}: {y:.6g}" for x, y in points.get_offsets())
    end = svg.find('<g id="', begin + 1)
    titled = re.sub(
        r"<use ([^>]*)/>",
        lambda use: f"<use {use[1]}><title>{escape(next(titles, name))}</title></use>",
        svg[begin:end],
    )
    return svg[:begin] + titled + svg[end:]


def alone(svg: str) -> str:
    """The figure as a separate file: on white, whatever colours the reader's desktop uses."""
    svg = svg.replace("currentColor", PRINT_INK)
    cut = svg.index(">") + 1
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:cut]}{paper}{svg[cut:]}\n'


def text(words: Any, letters: int = LETTERS) -> str:
    """Break into lines of at most `letters`, and escape mathematical notation."""
    return "\n".join(textwrap.wrap(str(words), letters)).replace("$", r"\$")


def legend(figure: Any, handles: Sequence[Any]) -> None:
    """Put names above the figure, in as many columns as fit; the figure grows by their height."""
    from matplotlib.textpath import TextPath

    names = [text(handle.get_label(), LETTERS - 8) for handle in handles]
    every = [line for name in names for line in name.splitlines()]
    sizes = (TextPath((0, 0), line, size=LEGEND_PT).get_extents().width for line in every)
    widest = max(sizes, default=0)
    columns = max(1, min(len(names), int(WIDTH_IN * 72 // (widest + BESIDE_NAME_PT))))
    options = {
        "loc": "outside upper left",
        "ncols": columns,
        "frameon": False,
        "fontsize": LEGEND_PT,
    }
    options |= {"borderaxespad": 0.1, "columnspacing": 1, "handlelength": 1.6, "handletextpad": 0.5}
    figure.legend(handles=list(handles), labels=names, **options)
    lines = sum(1 + name.count("\n") for name in names)
    figure.set_figheight(figure.get_figheight() + LINE_IN * -(-lines // columns) + 0.1)


def whole_numbers(axis: Any) -> None:
    """Label the x axis with whole numbers only: steps and epochs have no fractions."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=6))
    axis.xaxis.set_major_formatter(as_tick)
    low, high = axis.get_xlim()
    if high - low < 1:
        axis.set_xlim((low + high) / 2 - 1, (low + high) / 2 + 1)


def decimals(values: Iterable[Any], *, is_time: bool = False) -> int | None:
    """The number of decimals for all numbers of a column, so that the largest has four digits.

    It is smaller if all of them would end in zeros. None: each number has its own, because the
    smallest would be lost. A short time may be lost.
    """
    known = [abs(value) for value in numbers(values) if value]
    places = DIGITS - 1 - math.floor(math.log10(max(known, default=1.0)))
    places = max(0, min(places, TIME_DECIMALS) if is_time else places)
    is_lost = min(known, default=1.0) < 0.5 * 10.0**-places
    if places > MOST_DECIMALS or (is_lost and not is_time):
        return None
    if is_lost:
        return places
    written = (f"{value:.{places}f}".partition(".")[2] for value in known)
    return max((len(text.rstrip("0")) for text in written), default=0)


def in_digits(value: float, places: int | None) -> str:
    """Write a number with `places` decimals and separated thousands; None: with four digits."""
    if value != value:
        return "none"
    if places is None and abs(value) < 1000:
        return f"{value:.{DIGITS}g}"
    places = places or 0
    if 0 < value < 0.5 * 10.0**-places:
        return f"<{10.0**-places:.{places}f}"
    text = f"{value:,.{places}f}"
    return text.replace(",", "" if abs(value) < GROUPED_FROM else "\N{NO-BREAK SPACE}")


def column(values: Iterable[float], *, is_time: bool = False) -> list[str]:
    """Write the numbers of one column, all with the same number of decimals."""
    known = list(values)
    places = decimals(known, is_time=is_time)
    return [in_digits(value, places) for value in known]


def as_tick(value: float, _position: object = None) -> str:
    """The number at a tick of an axis."""
    return in_digits(value, 0) if abs(value) >= 1000 else f"{value:.10g}"


def with_intervals(
    means_s: Sequence[float], lows_s: Sequence[float], highs_s: Sequence[float], unit: Unit
) -> list[str]:
    """Write a column of means in one unit, each with ± half of its interval if there is one."""
    shown = [unit.convert(mean) for mean in means_s]
    ends = zip(lows_s, highs_s, strict=True)
    halves = [unit.convert((high - low) / 2) if low < high else 0.0 for low, high in ends]
    places = decimals([*shown, *halves], is_time=True)
    return [
        in_digits(mean, places)
        + (f" ± {in_digits(half, places)}" if half > 0 else "")
        + f" {unit.name}"
        for mean, half in zip(shown, halves, strict=True)
    ]


def link_rate(text: str) -> str:
    """`1gbit` as "1 Gbit/s"; other texts, such as "unlimited", unchanged."""
    found = _RATE.fullmatch(text)
    return f"{found[1]} {found[2].upper() if found[2] != 'k' else 'k'}bit/s" if found else text
