"""Print the tables that rich draws as other output is printed, with texts in them as they are."""

import os
import sys

from rich.console import Console, RenderableType

from muster.printable import printable


def show(*parts: RenderableType, pipe_width: int | None = None) -> None:
    """Print these, as wide as the terminal; lines in a file or a pipe need not be broken.

    A text is no markup of rich's, in cells of tables neither, and moves no terminal's cursor. A
    reader who has gone is an error of `print`, where rich would end the process with 1.
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
