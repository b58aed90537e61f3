"""Screens of a terminal as one animated SVG; the font is inside, only the characters in use.

The frames stand side by side, and the view steps from one to the next (CSS, `step-end`). Who has
asked the system for less motion sees the last one. A row that several frames share is drawn once
and used again.
"""

import base64
import io
from html import escape
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import pyte
from fontTools import subset
from fontTools.ttLib import TTFont

FONT = Path("fonts", "ttf", "DejaVuSansMono.ttf")  # comes with matplotlib, free to embed
CELL = (8.4, 18.0)  # width, height of a character in a font of 14 px
FONT_PX = 14
MARGIN = 14
BAR = 30  # the window's upper edge
BACKGROUND, INK = "#1b1f24", "#e6e6e6"
COLOURS = {
    "default": INK, "black": "#9aa0a6", "red": "#ff8a80", "green": "#8bd49c", "brown": "#f2cc60",
    "blue": "#8ab4f8", "magenta": "#d7aefb", "cyan": "#78d9ec", "white": "#ffffff",
}  # fmt: skip  # each has a contrast of more than 7:1 on BACKGROUND

Style = tuple[str, bool]  # colour, bold
Row = tuple[tuple[Style, str], ...]


class Frame(NamedTuple):
    """A screen and the seconds that it is shown."""

    seconds: float
    rows: tuple[Row, ...]


def frame(screen: pyte.Screen, seconds: float) -> Frame:
    """What `screen` shows now."""
    return Frame(seconds, tuple(_row(screen, line) for line in range(screen.lines)))


def _row(screen: pyte.Screen, line: int) -> Row:
    cells = [screen.buffer[line][column] for column in range(screen.columns)]
    while cells and cells[-1].data == " ":
        cells.pop()
    parts = groupby(cells, key=lambda cell: (_colour(cell.fg), cell.bold))
    return tuple((style, "".join(cell.data for cell in run)) for style, run in parts)


def _colour(name: str) -> str:
    known = COLOURS.get(name.removeprefix("bright"))
    return known or (f"#{name}" if len(name) == 6 else INK)


def draw(frames: list[Frame], columns: int, lines: int) -> str:
    """The whole file."""
    width = round(columns * CELL[0] + 2 * MARGIN)
    height = round(lines * CELL[1] + BAR + MARGIN)
    ids: dict[Row, str] = {}
    for row in (row for one in frames for row in one.rows if row):
        ids.setdefault(row, f"r{len(ids)}")
    total = sum(one.seconds for one in frames)
    begins = accumulate((one.seconds for one in frames), initial=0.0)
    steps = [
        f"{100 * begin / total:.2f}%{{transform:translateX(-{at * width}px)}}"
        for at, (begin, _) in enumerate(zip(begins, frames, strict=False))
    ]
    texts = "".join(text for row in ids for _, text in row)
    last = (len(frames) - 1) * width
    style = f"""
@font-face {{font-family:"terminal";src:url("data:font/woff;base64,{_font(texts)}")}}
text {{font:{FONT_PX}px "terminal",monospace;fill:{INK};white-space:pre}}
#film {{animation:play {total:.1f}s step-end infinite}}
@keyframes play {{{"".join(steps)}}}
@media (prefers-reduced-motion:reduce) {{
#film {{animation:none;transform:translateX(-{last}px)}}}}
"""
    shown = [
        f'<g transform="translate({at * width},0)">{_uses(one.rows, ids)}</g>'
        for at, one in enumerate(frames)
    ]
    dots = [
        f'<circle cx="{MARGIN + 6 + 18 * at}" cy="{BAR / 2}" r="5" fill="{colour}"/>'
        for at, colour in enumerate(["#ff5f56", "#ffbd2e", "#27c93f"])
    ]
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(''.join(text for _, text in frames[0].rows[0]))}</title>",
            f"<style>{style}</style>",
            "<defs>",
            *(f'<text id="{name}">{_spans(row)}</text>' for row, name in ids.items()),
            "</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>',
            *dots,
            f'<g id="film">{"".join(shown)}</g>',
            "</svg>\n",
        ]
    )


def _uses(rows: tuple[Row, ...], ids: dict[Row, str]) -> str:
    return "".join(
        f'<use href="#{ids[row]}" x="{MARGIN}" y="{BAR + CELL[1] * (at + 0.75):.1f}"/>'
        for at, row in enumerate(rows)
        if row
    )


def _spans(row: Row) -> str:
    """Each run of one style at the column where it begins: the browser's widths do not add up."""
    found, column = [], 0
    for (colour, bold), text in row:
        shape = f' fill="{colour}"' if colour != INK else ""
        shape += ' font-weight="bold"' if bold else ""
        if text.strip():
            found.append(f'<tspan x="{column * CELL[0]:.1f}"{shape}>{escape(text)}</tspan>')
        column += len(text)
    return "".join(found)


def _font(texts: str) -> str:
    """Base64 of a WOFF font that has these characters."""
    import matplotlib

    font = TTFont(Path(matplotlib.get_data_path()) / FONT)
    chosen = subset.Subsetter()
    chosen.populate(text="".join(sorted(set(texts))))
    chosen.subset(font)
    font.flavor = "woff"
    file = io.BytesIO()
    font.save(file)
    return base64.b64encode(file.getvalue()).decode()
