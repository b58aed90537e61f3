"""How figures are drawn: without a screen, in colours of their own, once wide and once narrow.

Text and axes take the colour of the page around them, so that a figure works on light and dark;
the reference's line does so too. No text is in a colour: small coloured text has too little
contrast, and a legend shows the line or the bar beside the name.
"""

import functools
import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec

P = ParamSpec("P")

INK = "#010203"  # stands for the page's own colour until the figure is placed
PRINT_INK, PAPER = "#1b1f24", "#ffffff"
# Okabe and Ito's, less black and yellow; the light ones darker, for 3:1 on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#BF6496", "#B07A00", "#3A93C9")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (6, 3)),
    (3, (2, 2)),
    (0, (8, 2, 2, 2)),
    (1, (1, 2)),
    (4, (4, 4)),
)
# In inches: of a page, and of a phone, on which type then has 11 pixels and more.
WIDTHS_IN = {"broad": 7.2, "slim": 3.7}
_width: ContextVar[str] = ContextVar("width", default="broad")
FONT, TYPE_PT = "DejaVu Sans", 9.5
# Sizes of lines and of type that stay readable on a page and on a phone.
STYLE = {
    "font.family": FONT,
    "font.size": TYPE_PT,
    "svg.fonttype": "path",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.18,
    "figure.constrained_layout.use": True,
    **dict.fromkeys(
        "text.color axes.labelcolor axes.edgecolor xtick.color ytick.color grid.color".split(), INK
    ),
}


def for_page_and_phone(draw: Callable[P, str]) -> Callable[P, str]:
    """Draw the figure broad, then slim; the page's style shows the one that fits."""

    @functools.wraps(draw)
    def both(*args: P.args, **how: P.kwargs) -> str:
        found = ""
        for name in WIDTHS_IN:
            with as_wide_as(name):
                found += draw(*args, **how).replace("<svg ", f'<svg class="{name}" ', 1)
        return found

    return both


@contextmanager
def as_wide_as(name: str) -> Iterator[None]:
    """Figures made inside have the width of that name in WIDTHS_IN."""
    before = _width.set(name)
    try:
        yield
    finally:
        _width.reset(before)


def is_slim() -> bool:
    return _width.get() == "slim"


def width_pt() -> float:
    """Of the figure that is being drawn."""
    return 72 * WIDTHS_IN[_width.get()]


def as_svg(figure: Any, colour: str = "currentColor") -> str:
    """The figure as an <svg> element, of which text and axes have `colour`."""
    import matplotlib as mpl

    out = io.StringIO()
    # Both widths stand in one page, where parts are found by their names.
    with mpl.rc_context({"svg.hashsalt": f"report {_width.get()}"}):
        metadata = {"Date": None, "Creator": None}
        figure.savefig(out, format="svg", transparent=True, metadata=metadata)
    text = out.getvalue()
    return text[text.index("<svg") :].replace(INK, colour)


def broad(svg: str) -> str:
    """Of both drawings of a figure the broad one: that of paper and of files."""
    end = "</svg>"
    return svg[: svg.index(end) + len(end)] if svg else ""


def alone(svg: str) -> str:
    """The figure as a file of its own: on white, whatever the reader's desktop is."""
    svg = broad(svg).replace("currentColor", PRINT_INK)
    cut = svg.index(">") + 1
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:cut]}{paper}{svg[cut:]}\n'


@contextmanager
def figure_of(height_in: float, **how: Any) -> Iterator[tuple[Any, Any]]:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width_pt() / 72, height_in))
        FigureCanvasSVG(figure)
        yield figure, figure.subplots(**how)


def plain(text: Any) -> str:
    """Text that matplotlib does not read as mathematics."""
    return str(text).replace("$", r"\$")


@functools.lru_cache(maxsize=4096)
def text_pt(text: str, size_pt: float = TYPE_PT) -> float:
    """How wide the longest line of `text` is drawn."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size_pt)
    sizes = [
        text_to_path.get_text_width_height_descent(line, font, ismath=False)
        for line in text.split("\n")
    ]
    return max(float(width) for width, _, _ in sizes)


def wrapped(text: str, room_pt: float, size_pt: float = TYPE_PT) -> str:
    """`text` in as many lines as it takes to be at most so wide."""
    letters = len(text)
    while text_pt(text, size_pt) > room_pt and letters > 4:
        letters = min(letters - 1, int(letters * max(0.7, room_pt / text_pt(text, size_pt))))
        text = "\n".join(textwrap.wrap(text.replace("\n", " "), letters))
    return text


def colours(labels: Sequence[str], ink_first: bool = True) -> dict[str, str]:
    """A colour for each label; the first, the reference, has the page's own."""
    rest = labels[1:] if ink_first else labels
    found = {label: COLOURS[number % len(COLOURS)] for number, label in enumerate(rest)}
    return {labels[0]: INK, **found} if ink_first and labels else found


def dashes(number: int) -> Any:
    """Of line `number`; with the colours, no two of the first 36 lines look the same."""
    return DASHES[(number + number // len(COLOURS)) % len(DASHES)]


def marker(x: Sequence[float]) -> str | None:
    return "o" if len(x) < 3 else None


def legend(figure: Any, handles: Sequence[Any]) -> float:
    """Names above the figure, in as many columns as it has room for; its height in inches.

    The handles are lines or patches with labels.
    """
    boxes = all(hasattr(one, "get_facecolor") for one in handles)
    sample, between = (0.9 if boxes else 2.8) * TYPE_PT + 6, 12.0
    room = width_pt() - 12
    names = [wrapped(str(one.get_label()), room - sample) for one in handles]
    wide = [sample + text_pt(name) for name in names]
    columns = next(
        count
        for count in range(len(names), 0, -1)
        if count == 1 or sum(_columns(wide, count)) + between * (count - 1) <= room
    )
    figure.legend(
        handles=list(handles),
        labels=[plain(name) for name in names],
        ncols=columns,
        loc="outside upper left",
        frameon=False,
        handlelength=0.9 if boxes else 2.8,
        handleheight=0.9,
        columnspacing=between / TYPE_PT,
        handletextpad=6 / TYPE_PT,
        labelspacing=0.25,
        borderpad=0.1,
        borderaxespad=0.1,
    )
    lines = [1 + name.count("\n") for name in names]
    return sum(_columns(lines, columns, across=True)) * 0.185 + 0.1


def _columns(sizes: Sequence[float], count: int, across: bool = False) -> list[float]:
    """The largest of each column, or across of each row: matplotlib fills columns in turn."""
    least, more = divmod(len(sizes), count)
    found, at = [], 0
    for number in range(count):
        size = least + (number < more)
        found.append(list(sizes[at : at + size]))
        at += size
    if across:
        return [max(c[row] for c in found if row < len(c)) for row in range(len(found[0]))]
    return [max(one) for one in found]


def whole_numbers(axis: Any) -> None:
    """Steps and epochs have no fractions."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(
        MaxNLocator(integer=True, min_n_ticks=1, nbins=5 if is_slim() else 9)
    )
    low, high = axis.get_xlim()
    if high - low < 1:
        axis.set_xlim((low + high) / 2 - 1, (low + high) / 2 + 1)
