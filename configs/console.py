"""Print texts and rich's tables like other output, without markup.

A terminal's last line shows what a command is waiting for, and for how long: `start_status`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from muster.printable import duration, printable
from muster.terminal import is_terminal

if TYPE_CHECKING:  # rich is imported where it prints: most commands print no table
    from rich.console import RenderableType
    from rich.progress import Progress

_status: Progress | None = None  # a process has one terminal


def show(*parts: RenderableType, pipe_width: int | None = None) -> None:
    """Print `parts` as wide as the terminal; in a file or a pipe, lines need not be broken.

    Rich interprets no markup in texts and cells, and no text moves the terminal's cursor. If the
    reader of a pipe has ended, `print` raises an error, whereas rich would end the process with
    exit code 1.
    """
    from rich.console import Console

    is_set = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if is_set else pipe_width
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as drawn:
        for part in parts:
            is_text = isinstance(part, str)
            console.print(printable(part) if is_text else part, soft_wrap=is_text)
    lines = drawn.get().split("\n")
    print("\n".join(line.rstrip(" ") for line in lines), end="")  # rich fills columns with blanks


def start_status(text: str) -> None:
    """Show on a terminal what this process is waiting for, and how long, until `end_status`.

    Output that it prints in the meantime appears above that line.
    """
    global _status
    if _status is None and is_terminal(sys.stdout) and is_terminal(sys.stderr):
        _status = _started(text)


def update_status(text: str) -> None:
    """Show what this process is waiting for now, if there is a status line."""
    if _status is not None:
        _status.reset(_status.task_ids[0], description=text)


def shows_status() -> bool:
    """Whether a status line is shown."""
    return _status is not None


def end_status() -> None:
    """Remove the status line: from here on the terminal shows the program's own output."""
    global _status
    if _status is not None:
        _status.stop()
        _status = None


def _started(text: str) -> Progress:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task
    from rich.text import Text

    class Waiting(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.description}: {duration(task.elapsed or 0)}", overflow="ellipsis")

    console = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
    status = Progress(SpinnerColumn(), Waiting(), console=console, transient=True)
    status.add_task(text, total=None)
    status.start()
    return status
