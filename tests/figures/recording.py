"""What a real run leaves in a terminal, as an SVG that loads nothing: docs/figures/run.svg.

    python -m tests.figures.recording [--output docs/figures/run.svg] [-- COMMAND ...]

The command runs in a pseudo-terminal, and what it prints goes through a terminal emulator (pyte),
so that lines which it has overwritten are not shown; rich draws the rest. Where the checkout lies
is left out of its paths.
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
COLUMNS, LINES = 100, 100
TIMEOUT_S = 600
COMMAND = ("python", "launch/submit.py", "--nodes", "4", "--sync", "ddp")
# of pyte, which has names of its own; another one is six digits
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
    text = Text("\n").join(rows)
    text.rstrip()
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(text, no_wrap=True)
    whole = console.export_svg(title="Muster", unique_id="run")
    return re.sub(r"@font-face {.*?}\n", "", whole, flags=re.DOTALL)  # which it would load


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
    """This one, with the interpreter's tools first, and the terminal that pyte is."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**kept, "PATH": path, "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}


if __name__ == "__main__":
    sys.exit(main())
