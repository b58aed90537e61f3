"""A real run in a terminal, as an animated SVG that loads nothing: docs/figures/run.svg.

    python -m tests.figures.recording [--output docs/figures/run.svg] [-- COMMAND ...]

The command runs in a pseudo-terminal. What it prints goes, with the time at which it came, through
a terminal emulator (pyte); each screen that lasts is a frame. Waits are shortened to LONGEST_S.
Where the checkout lies is left out of its paths.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pyte

from tests.figures import terminal_svg
from tests.figures.terminal_svg import Frame

REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS, LINES = 100, 20
LEAST_S = 0.25  # that a frame is shown
LONGEST_S = 1.2
AT_THE_END_S = 8.0
TIMEOUT_S = 600.0
COMMAND = ("python", "launch/submit.py", "--nodes", "4", "--sync", "ddp")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.figures.recording", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--output", type=Path, default=REPOSITORY / "docs/figures/run.svg")
    parser.add_argument("command", nargs="*", default=COMMAND, help="after --")
    args = parser.parse_args(argv)
    screen = pyte.Screen(COLUMNS, LINES)
    frames, status = record(args.command, screen)
    if status:
        print("\n".join(screen.display), file=sys.stderr)
        return status
    args.output.write_text(terminal_svg.draw(frames, COLUMNS, LINES), encoding="utf-8")
    return 0


def record(command: Sequence[str], screen: pyte.Screen) -> tuple[list[Frame], int]:
    """The frames of a run of `command`, and its exit status."""
    stream = pyte.Stream(screen)
    stream.feed(f"$ {' '.join(command)}\r\n")
    frames = [terminal_svg.frame(screen, LONGEST_S)]
    child = pexpect.spawn(
        command[0], list(command[1:]), cwd=str(REPOSITORY), env=_environment(),
        dimensions=(LINES, COLUMNS), encoding="utf-8", timeout=TIMEOUT_S,
    )  # fmt: skip
    for waited_s, text in _printed(child):
        frames[-1] = frames[-1]._replace(seconds=min(max(waited_s, LEAST_S), LONGEST_S))
        stream.feed(text.replace(f"{REPOSITORY}/", ""))
        shown = terminal_svg.frame(screen, AT_THE_END_S)
        if shown.rows != frames[-1].rows:
            frames.append(shown)
    frames[-1] = frames[-1]._replace(seconds=AT_THE_END_S)
    child.close()
    return frames, child.exitstatus or 0


def _environment() -> dict[str, str]:
    """This one, with the interpreter's tools first, and the terminal that pyte is."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**kept, "PATH": path, "TERM": "xterm-256color", "HF_HUB_OFFLINE": "1"}


def _printed(child: "pexpect.spawn[str]") -> Iterator[tuple[float, str]]:
    """What came within LEAST_S, and how long it was waited for."""
    began = time.monotonic()
    collected = ""
    while True:
        try:
            collected += child.read_nonblocking(4096, timeout=LEAST_S)
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            yield time.monotonic() - began, collected
            return
        now = time.monotonic()
        if now - began > TIMEOUT_S:
            raise TimeoutError(f"{child.command} has not ended after {TIMEOUT_S:.0f} s")
        if collected and now - began >= LEAST_S:
            yield now - began, collected
            began, collected = now, ""


if __name__ == "__main__":
    sys.exit(main())
