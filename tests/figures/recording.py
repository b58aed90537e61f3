"""What a real run prints, as an SVG that loads nothing: docs/figures/run.svg.

    python -m tests.figures.recording [--output FILE] [--exit-code CODE] [-- COMMAND ...]

Without a command, it runs waiting_rank.py as `train.py` of a new project: a rank hangs, and Muster
names it. The command prints to a terminal, in color, and rich draws its output. Long lines are
broken between words, so that letters are 10 pixels high on a phone that is 390 pixels wide. The
paths of the checkout and the project are left out.
"""

import argparse
import io
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from muster.checkout import CHECKOUT

PROGRAM = CHECKOUT / "tests/figures/waiting_rank.py"
COMMAND = shlex.split("muster run --launcher local --nodes 4 --on-hang stop -- train.py")
ENDED_FOR_A_HANG = 93
WIDTH = 66  # characters per line of the picture
INDENT = "    "  # of continuation lines
MOST_LINES = 24
CURSOR = re.compile(r"\x1b\[\?25[hl]")  # shows or hides the cursor
UP, ERASE = "\x1b[1A", "\x1b[2K"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.recording", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--output", type=Path, default=CHECKOUT / "docs/figures/run.svg")
    parser.add_argument(
        "--exit-code", type=int, default=ENDED_FOR_A_HANG, help="which the command ends with"
    )
    parser.add_argument("command", nargs="*", default=COMMAND, help="after --")
    args = parser.parse_args(argv)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as project:
        shutil.copyfile(PROGRAM, Path(project, "train.py"))
        code, printed = on_terminal(args.command, project, {**os.environ, "PATH": path})
    if code != args.exit_code:
        print(printed, file=sys.stderr)
        print(f"exit code {code} instead of {args.exit_code}", file=sys.stderr)
        return 1
    printed = printed.replace(f"{os.path.realpath(project)}/", "")
    args.output.write_text(drawn(shlex.join(args.command), printed), encoding="utf-8")
    return 0


def on_terminal(command: Sequence[str], folder: str, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a command; return its exit code and what its terminal shows at the end, in color."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env={**env, "TERM": "xterm-256color", "COLUMNS": "1000"},
        stdin=its, stdout=its, stderr=its, start_new_session=True,
    )  # fmt: skip
    os.close(its)
    printed = b""
    with suppress(OSError):  # raised at the end of the output
        while chunk := os.read(ours, 65_536):
            printed += chunk
    os.close(ours)
    return process.wait(), shown(printed.decode())


def shown(printed: str) -> str:
    """Return a terminal's output without its status line."""
    lines = list[str]()
    for line in CURSOR.sub("", printed).replace("\r\n", "\n").split("\n"):
        if UP in line:
            lines.pop()
        lines.append(line.rpartition(ERASE)[2].lstrip("\r"))
    return "\n".join(lines)


def drawn(command: str, printed: str) -> str:
    """Return the text of the SVG file."""
    text = Text.from_ansi(f"$ {command}\n{printed.replace(f'{CHECKOUT}/', '')}")
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True)
    lines = [part for line in text.split() for part in _wrapped(line, console)]
    if len(lines) > MOST_LINES:
        raise SystemExit(f"{len(lines)} lines are too many for the picture: {MOST_LINES} at most")
    console.print(Text("\n").join(lines))
    whole = console.export_svg(title="Muster", unique_id="run")
    return re.sub(r"@font-face {.*?}\n", "", whole, flags=re.DOTALL)  # it would load these fonts


def _wrapped(line: Text, console: Console) -> list[Text]:
    """Split a line into parts that fit the picture, all but the first indented."""
    first, *others = line.wrap(console, WIDTH) or [line]
    rest = Text(" ").join(others).wrap(console, WIDTH - len(INDENT)) if others else []
    for part in rest:
        part.pad_left(len(INDENT))
    return [first, *rest]


if __name__ == "__main__":
    sys.exit(main())
