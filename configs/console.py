"""Print texts and rich's tables as other output is printed, without markup."""

import os
import sys

from rich.console import Console, RenderableType

from muster.printable import printable


def show(*parts: RenderableType, pipe_width: int | None = None) -> None:
    """Print `parts`, as wide as the terminal; in a file or a pipe no line need be broken.

    Rich finds no markup in texts and cells, and no text moves the terminal's cursor. If the reader
    of a pipe has ended, `print` raises an error; rich would end the process with 1.
    """
    is_set = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if is_set else pipe_width
    console = Console(width=width, markup=False, emoji=False, highlight=False)
    with console.capture() as drawn:
        for part in parts:
            is_text = isinstance(part, str)
            console.print(printable(part) if is_text else part, soft_wrap=is_text)
    lines = drawn.get().split("\n")
    print("\n".join(line.rstrip(" ") for line in lines), end="")  # rich fills columns with blanks
