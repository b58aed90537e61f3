"""How figures are drawn: without a screen, in colours of their own, with names at lines' ends.

Text and axes take the colour of the page around them, so that a figure works on light and dark;
the reference's line does so too.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

INK = "#010203"  # stands for the page's own colour until the figure is placed
# Okabe and Ito's, less black and yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (6, 3)),
    (3, (2, 2)),
    (0, (8, 2, 2, 2)),
    (1, (1, 2)),
    (4, (4, 4)),
)
WIDTH_IN = 7.2
# Sizes of lines and of type that stay readable on a page and on a phone.
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "report",
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


def as_svg(figure: Any, colour: str = "currentColor") -> str:
    """The figure as an <svg> element, of which text and axes have `colour`."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :].replace(INK, colour)


def alone(svg: str) -> str:
    """The figure as a file of its own, that follows the reader's light or dark setting."""
    style = (
        "<style>svg{color:#1b1f24}@media (prefers-color-scheme:dark){svg{color:#e6e8eb}}</style>"
    )
    cut = svg.index(">") + 1
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:cut]}{style}{svg[cut:]}'


@contextmanager
def figure_of(height_in: float, **how: Any) -> Iterator[tuple[Any, Any]]:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in))
        FigureCanvasSVG(figure)
        yield figure, figure.subplots(**how)


def plain(text: Any) -> str:
    """Text that matplotlib does not read as mathematics."""
    return str(text).replace("$", r"\$")


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


def note(
    axis: Any, text: str, at: tuple[float, float], offset: tuple[int, int] = (5, 0), **style: Any
) -> None:
    """Write `text` so many points beside a point of the axes."""
    axis.annotate(plain(text), at, offset, textcoords="offset points", **{"va": "center", **style})


def label_ends(axis: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the right, pushed apart where lines end close together, with a thin leader."""
    if not ends:
        return
    axis.margins(x=0.02)
    axis.autoscale_view()
    to_axes = axis.transData + axis.transAxes.inverted()
    spots = sorted(
        ((to_axes.transform((x, y)), text, c) for x, y, text, c in ends), key=lambda s: s[0][1]
    )
    height_in = axis.get_position().height * axis.figure.get_figheight()
    for ((x, y), text, c), at in zip(
        spots, spread([s[0][1] for s in spots], 0.17 / height_in), strict=True
    ):
        axis.annotate(
            plain(text),
            xy=(x, y),
            xytext=(1.03, at),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=c,
            va="center",
            ha="left",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": c,
                "linewidth": 0.5,
                "alpha": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 1,
            },
        )


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending places as near to `wanted` as a distance of `gap` between them allows."""
    places: list[float] = []
    for one in wanted:
        places.append(max(one, places[-1] + gap) if places else one)
    shift = sum(p - w for p, w in zip(places, wanted, strict=True)) / max(1, len(places))
    low = max(places[0] - shift, 0.0) if places else 0.0
    return [place - places[0] + low for place in places]


def whole_numbers(axis: Any) -> None:
    """Steps and epochs have no fractions."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    low, high = axis.get_xlim()
    if high - low < 1:
        axis.set_xlim((low + high) / 2 - 1, (low + high) / 2 + 1)
