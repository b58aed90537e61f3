"""The doctor's table: what is wrong, on which node, and what to do."""

import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.checks.findings import Row

COLOURS = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}


def console() -> Console:
    """As wide as the terminal; in a file wide enough for most lines."""
    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if wide else 120, highlight=False)


def show(rows: Sequence[Row]) -> None:
    """Print a row for each check."""
    table = Table("check", "", "found", "what to do", box=box.SIMPLE, pad_edge=False)
    for row in rows:
        table.add_row(
            row.check,
            Text(row.verdict, style=COLOURS[row.verdict]),
            Text("\n".join(row.found)),
            Text(row.fix),
        )
    console().print(table)
