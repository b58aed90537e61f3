"""Runs, one line each: the output of `jobs.py list`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from launch.runs import run_state
from launch.runs.run_state import Watchers
from launch.runs.watching import run_activity, run_document
from muster import json_output

PIPE_WIDTH = 200  # lines in a file or a pipe need not be broken


def show(runs: Sequence[Path]) -> None:
    """Print these runs in the given order, newest first: what each does, or how it ended."""
    from rich.console import Console
    from rich.table import Table

    pairs = [*zip(runs, run_state.of_all(runs, Watchers()), strict=True)]
    json_output.emit("runs", runs=[run_document.brief(*pair) for pair in pairs])
    table = Table(box=None, pad_edge=False)
    for column in ("run", "through", "job", "state", "what it does"):
        table.add_column(column, no_wrap=column != "what it does")
    for run, state in pairs:
        known = run_document.brief(run, state)
        where = (str(known[name] or "") for name in ("launcher", "job_id"))
        table.add_row(run.name, *where, state.word, run_activity.brief(run, state))
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)
