"""What a real run prints, as an SVG that loads nothing: docs/figures/run.svg.

    python -m tests.figures.recording [--output FILE] [--exit-code CODE] [-- COMMAND ...]

Without a command: a rank that hangs (waiting_rank.py, as `train.py` of a project of its own), and
is named by Muster. rich draws it. Long lines are broken between words, so that letters are 10
pixels high on a phone of 390 pixels. The paths of the checkout and the project are left out.
"""

import argparse
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

from muster.checkout import CHECKOUT

PROGRAM = CHECKOUT / "tests/figures/waiting_rank.py"
COMMAND = shlex.split("muster run --launcher local --nodes 4 --on-hang stop -- train.py")
ENDED_FOR_A_HANG = 93
# Letters of a line in the picture, and what continues one.
LINES = TextWrapper(width=66, subsequent_indent="    ", break_on_hyphens=False)


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
        done = subprocess.run(
            args.command, cwd=project, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    if done.returncode != args.exit_code:
        print(done.stdout, file=sys.stderr)
        print(f"exit code {done.returncode} instead of {args.exit_code}", file=sys.stderr)
        return 1
    printed = done.stdout.replace(f"{os.path.realpath(project)}/", "")
    args.output.write_text(drawn(shlex.join(args.command), printed), encoding="utf-8")
    return 0


def drawn(command: str, printed: str) -> str:
    """The file."""
    lines = [f"$ {command}", *printed.replace(f"{CHECKOUT}/", "").splitlines()]
    console = Console(width=LINES.width, record=True, file=io.StringIO())
    for line in lines:
        console.print(Text("\n".join(LINES.wrap(line))))
    whole = console.export_svg(title="Muster", unique_id="run")
    return re.sub(r"@font-face {.*?}\n", "", whole, flags=re.DOTALL)  # which it would load


if __name__ == "__main__":
    sys.exit(main())
