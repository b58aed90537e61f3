"""How quantities are written, and figures drawn: without a screen, narrow enough for a phone.

Text and axes take the colour of the page around them, so that a figure works on light and dark.
No text is in a colour: small coloured text has too little contrast, and a legend shows the line or
the bar beside the name.

Quantities are written as a person reads them: `6.7 ms`, `4.37 s`, `6.70 ± 0.12 ms`, `1 Gbit/s`.
"""

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from train.report.data.quantities import Unit

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit")  # in the form of a testbed's --rate
INK = "#010203"  # stands for the page's own colour until the figure is placed
PRINT_INK, PAPER = "#1b1f24", "#ffffff"
# Okabe and Ito's, without black and yellow; the light ones darker, for 3:1 on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#BF6496", "#B07A00", "#3A93C9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = (
    "-", (0, (6, 3)), (3, (2, 2)), (0, (8, 2, 2, 2)), (1, (1, 2)), (4, (4, 4))
)  # fmt: skip
WIDTH_IN = 4.2  # on a phone of 390 pixels, type of 9.5 points then has 11
LEGEND_PT = 8.5  # on paper at least 7, where two figures are side by side
BESIDE_NAME_PT = 27  # in a legend: the line or bar, and space
LINE_IN, LETTERS = 0.18, 46  # height of a line of text, and letters across the figure
STYLE = Path(__file__).with_name("figures.mplstyle")  # in which INK stands for colours


@contextmanager
def figure_of(height_in: float, **options: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, in an array of two dimensions."""
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
    return text[text.index("<svg") :].replace(INK, "currentColor")


def alone(svg: str) -> str:
    """The figure as a separate file: on white, whatever the reader's desktop uses."""
    svg = svg.replace("currentColor", PRINT_INK)
    cut = svg.index(">") + 1
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:cut]}{paper}{svg[cut:]}\n'


def text(words: Any, letters: int = LETTERS) -> str:
    """Break into lines of at most `letters`, and escape mathematical notation."""
    return "\n".join(textwrap.wrap(str(words), letters)).replace("$", r"\$")


def legend(figure: Any, handles: Sequence[Any]) -> None:
    """Names above the figure, which grows by their height; in as many columns as there is room."""
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
    """Label with whole numbers only: steps and epochs have no fractions."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=6))
    low, high = axis.get_xlim()
    if high - low < 1:
        axis.set_xlim((low + high) / 2 - 1, (low + high) / 2 + 1)


def duration(seconds: float) -> str:
    """Three digits, in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def with_interval(mean_s: float, low_s: float, high_s: float, unit: Unit) -> str:
    """The mean, with half of the interval if there is one, in the unit of its column."""
    if not low_s < high_s:  # there is none
        return f"{unit.convert(mean_s):.3g} {unit.name}"
    half = unit.convert((high_s - low_s) / 2)
    digits = max(0, 1 - math.floor(math.log10(half)))
    return f"{unit.convert(mean_s):.{digits}f} ± {half:.{digits}f} {unit.name}"


def link_rate(text: str) -> str:
    """`1gbit` as "1 Gbit/s"; other texts, such as "unlimited", unchanged."""
    found = _RATE.fullmatch(text)
    return f"{found[1]} {found[2].upper() if found[2] != 'k' else 'k'}bit/s" if found else text
