"""Write values as text that a terminal, a spreadsheet or a page shows but does not act on.

Text from other programs, nodes or users may contain escape sequences that colour or clear a
terminal, set its title, or move its cursor over other lines. The output of the user's own program
is passed on unchanged, with its colours.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from muster.terminal import in_one_line
from muster.worker.process import signal_name as signal_name

FORMULA = ("=", "+", "-", "@")
LISTED = 8  # most names on a line


def printable(text: object) -> str:
    """Replace all but visible characters, spaces and line breaks in a text by Python's escapes."""
    plain = str(text).expandtabs()
    if plain.replace("\n", "").isprintable():  # as most texts are
        return plain
    return "".join(letter if _is_visible(letter) else ascii(letter)[1:-1] for letter in plain)


def _is_visible(letter: str) -> bool:
    """Whether a terminal only shows the character, as it does with spaces of any width."""
    return letter.isprintable() or letter == "\n" or unicodedata.category(letter) == "Zs"


def on_one_line(text: object) -> str:
    """Like `printable`, but for a one-line field: line breaks become escapes, too."""
    return printable(in_one_line(str(text))).replace("\n", "\\n")


def listed(names: Sequence[object]) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(map(str, names[:LISTED])) + more


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 node`, `4 nodes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A duration as text: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def csv_cell(value: Any) -> Any:
    """A cell for a CSV file; a text that a spreadsheet would evaluate gets a `'` before it."""
    if not isinstance(value, str):
        return value
    text = on_one_line(value)
    if len(text) < 2 or not text.startswith(FORMULA) or _is_number(text):
        return text
    return f"'{text}"


def without_html(text: str) -> str:
    """Escape a text for Markdown, so that nothing in it is an HTML tag."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def json_text(value: Any, **form: Any) -> str:
    """`value` as JSON, by `json.dumps` with the options `form`; NaN and infinity become null.

    JSON has no such numbers, and most other readers refuse what Python writes for them.
    """
    try:
        return json.dumps(value, allow_nan=False, **form)
    except ValueError:  # or a circular value, for which this fails again
        plain = json.loads(json.dumps(value, **form), parse_constant=lambda _: None)
        return json.dumps(plain, **form)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
