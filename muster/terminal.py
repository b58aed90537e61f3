"""Color messages on a terminal: `error:` is red, `warning:` yellow, and flags and paths stand out.

A remedy has a line of its own, `tip: ...`, below the problem.
"""

import io
import os
import re
import sys
from typing import TextIO

TIP = "\ntip: "  # in the text of a problem, between the problem and its remedy
RESET = "\x1b[0m"
FLAG, PATH = "\x1b[36m", "\x1b[35m"
COLORS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[1;34m", "tip": "\x1b[1;32m"}
# A line with a label. While a status line is shown, cursor escapes may come before it.
MESSAGE = re.compile(r"^((?:\r|\x1b\[[\d;?]*[A-Za-z])*)(error|warning|note|tip):(?= )(.*)$", re.M)
FLAG_OR_PATH = re.compile(
    r"(?<![\w./:=-])(?:"
    r"(--?[A-Za-z][\w-]*)"
    r"|((?:~|\.{1,2})?/[\w.+@~/-]*\w|[A-Za-z_.][\w.+-]*/[\w.+@/-]*\w"  # with a slash
    r"|[\w-]+\.(?:py|sh|ya?ml|toml|json|txt)\b)(?::\d+)?"  # or with a suffix
    r")"
)


def is_terminal(stream: TextIO) -> bool:
    """Whether `stream` leads to a terminal whose lines can be colored and redrawn."""
    return os.environ.get("TERM", "dumb") != "dumb" and not stream.closed and stream.isatty()


def shows_color(stream: TextIO) -> bool:
    """Whether messages on `stream` are colored: on a terminal, unless the user wants no colors."""
    return not os.environ.get("NO_COLOR") and is_terminal(stream)


def colored(text: str) -> str:
    """Color the messages in `text`; its other lines are left as they are."""
    return MESSAGE.sub(_colored_message, text)


def in_one_line(text: str) -> str:
    """Join a problem and its remedy for a one-line field: `a is set; leave it out`."""
    return text.replace(TIP, "; ")


def color_messages() -> None:
    """Color the messages on stderr from here on, if it is a terminal."""
    if isinstance(sys.stderr, io.TextIOWrapper) and shows_color(sys.stderr):
        old = sys.stderr
        sys.stderr = _Messages(
            old.buffer, encoding=old.encoding, errors=old.errors, line_buffering=True
        )


class _Messages(io.TextIOWrapper):
    """Standard error that colors its messages as long as it is a terminal."""

    def write(self, text: str) -> int:
        super().write(colored(text) if shows_color(self) else text)
        return len(text)


def _colored_message(match: re.Match[str]) -> str:
    before, label, text = match.groups()
    text = FLAG_OR_PATH.sub(lambda word: f"{FLAG if word[1] else PATH}{word[0]}{RESET}", text)
    return f"{before}{COLORS[label]}{label}:{RESET}{text}"
