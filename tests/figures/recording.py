"""What a real run leaves in a terminal, as an SVG that loads nothing: docs/figures/run.svg.

    python -m tests.figures.recording [--output docs/figures/run.svg] [-- COMMAND ...]

The command runs in a pseudo-terminal. A terminal emulator (pyte) interprets its output, so that
overwritten lines are not shown; rich draws the rest. Long lines are broken between words, so that
letters are 10 pixels high on a phone of 390 pixels. The checkout's path is left out.
"""

import argparse
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS, LINES = 200, 100  # of the terminal, in which no line of a run is broken
LETTERS, INDENT = 63, 4  # of a line in the picture, and of what continues one
TIMEOUT_S = 600
COMMAND = ("python", "launch/submit.py", "--nodes", "4", "--sync", "ddp")
# pyte's own names; any other colour is six digits
COLOURS = {"brown": "yellow", "default": ""}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.recording", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs/figures/run.svg")
    parser.add_argument("command", nargs="*", default=COMMAND, help="after --")
    args = parser.parse_args(argv)
    printed, status = pexpect.run(
        shlex.join(args.command), cwd=str(REPOSITORY), env=_environment(), timeout=TIMEOUT_S,
        withexitstatus=True, encoding="utf-8", dimensions=(LINES, COLUMNS),
    )  # fmt: skip
    if status:
        print(printed, file=sys.stderr)
        return int(status)
    args.output.write_text(drawn(shlex.join(args.command), printed), encoding="utf-8")
    return 0


def drawn(command: str, printed: str) -> str:
    """The file."""
    screen = pyte.Screen(COLUMNS, LINES)
    pyte.Stream(screen).feed(f"$ {command}\r\n" + printed.replace(f"{REPOSITORY}/", ""))
    rows = [_row(screen, line) for line in range(screen.lines)]
    console = Console(width=LETTERS, record=True, file=io.StringIO())
    text = Text("\n").join(line for row in rows for line in _broken(row, console))
    text.rstrip()
    console.print(text, no_wrap=True)
    whole = console.export_svg(title="Muster", unique_id="run")
    return re.sub(r"@font-face {.*?}\n", "", whole, flags=re.DOTALL)  # which it would load


def _broken(row: Text, console: Console) -> list[Text]:
    first, *more = row.wrap(console, LETTERS) or [row]
    if more:
        rest = row[len(first.plain) :]
        begin = len(rest.plain) - len(rest.plain.lstrip())
        more = list(rest[begin:].wrap(console, LETTERS - INDENT))
    for line in more:
        line.pad_left(INDENT)
    return [first, *more]


def _row(screen: pyte.Screen, line: int) -> Text:
    row = Text()
    cells = [screen.buffer[line][column] for column in range(screen.columns)]
    for style, run in groupby(cells, key=_style):
        row.append("".join(cell.data for cell in run), style)
    row.rstrip()
    return row


def _style(cell: pyte.screens.Char) -> str:
    name = cell.fg.removeprefix("bright")
    colour = f"#{name}" if re.fullmatch("[0-9a-f]{6}", name) else COLOURS.get(name, name)
    return f"{'bold ' if cell.bold else ''}{colour}".strip()


def _environment() -> dict[str, str]:
    """This environment, with the interpreter's tools first, and pyte's kind of terminal."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**kept, "PATH": path, "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}


if __name__ == "__main__":
    sys.exit(main())
