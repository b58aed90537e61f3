"""All runs, one line each, refreshed: what `jobs.py top` shows."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launch.runs import run_record, run_state
from launch.runs.run_state import State, Watchers
from launch.runs.watching import run_activity

REFRESH_S = 2.0
PIPE_WIDTH = 200  # a file or a pipe has no width that lines must be broken for
ENDED_SHOWN = 5  # runs that are over, below those that are not


def top(find: Callable[[], Sequence[Path]], *, number: int, once: bool) -> int:
    """Show the runs until Ctrl-C; `once`, or into a file or a pipe: one time."""
    from rich.console import Console

    watchers = Watchers()
    if once or not sys.stdout.isatty():
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        Console(width=width).print(_table(find(), watchers, number))
        return 0
    from rich.live import Live

    try:
        with Live(auto_refresh=False, screen=True) as live:
            while True:
                live.update(_table(find(), watchers, number), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return 0


def shown(runs: Sequence[Path], states: Sequence[State]) -> list[tuple[Path, State]]:
    """Runs that are not over first, then the last of those that are; newest first in both."""
    pairs = list(zip(runs, states, strict=True))
    going = [pair for pair in pairs if not pair[1].over]
    return going + [pair for pair in pairs if pair[1].over][:ENDED_SHOWN]


def _table(runs: Sequence[Path], watchers: Watchers, number: int) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("run", "through", "job", "state", "what it does"):
        table.add_column(column, no_wrap=column != "what it does")
    newest = runs[:number]
    for run, state in shown(newest, run_state.of_all(newest, watchers)):
        job = run_record.read_job(run) or {}
        where = (str(job.get("launcher", "")), str(job.get("job_id", "")))
        table.add_row(run.name, *where, state.word, run_activity.brief(run, state))
    table.caption = f"{time.strftime('%H:%M:%S')}; Ctrl-C ends this, the runs go on"
    table.caption_justify = "left"
    if not sys.stdout.isatty():
        table.caption = None
    return table
