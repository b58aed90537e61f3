"""What a real run prints, as an SVG that loads nothing: docs/figures/run.svg.

    python -m tests.figures.recording [--output docs/figures/run.svg] [-- COMMAND ...]

rich draws it. Long lines are broken between words, so that letters are 10 pixels high on a phone of
390 pixels. The checkout's path is left out.
"""

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import TextWrapper

from rich.console import Console
from rich.text import Text

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = ("python", "launch/submit.py", "--nodes", "4", "--sync", "ddp")
# Letters of a line in the picture, and what continues one.
LINES = TextWrapper(width=63, subsequent_indent="    ", break_on_hyphens=False)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.recording", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs/figures/run.svg")
    parser.add_argument("command", nargs="*", default=COMMAND, help="after --")
    args = parser.parse_args(argv)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        args.command, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        return done.returncode
    args.output.write_text(drawn(shlex.join(args.command), done.stdout), encoding="utf-8")
    return 0


def drawn(command: str, printed: str) -> str:
    """The file."""
    lines = [f"$ {command}", *printed.replace(f"{REPOSITORY}/", "").splitlines()]
    console = Console(width=LINES.width, record=True, file=io.StringIO())
    for line in lines:
        console.print(Text("\n".join(LINES.wrap(line))))
    whole = console.export_svg(title="Muster", unique_id="run")
    return re.sub(r"@font-face {.*?}\n", "", whole, flags=re.DOTALL)  # which it would load


if __name__ == "__main__":
    sys.exit(main())
