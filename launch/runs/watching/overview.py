"""Runs, one line each: what `jobs.py list` shows once, and `jobs.py top` again and again."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launch.runs import run_state
from launch.runs.run_state import State, Watchers
from launch.runs.watching import run_activity, run_document
from muster import json_output

REFRESH_S = 2.0
PIPE_WIDTH = 200  # a file or a pipe has no width that lines must be broken for
ENDED_SHOWN = 5  # runs that are over, below those that are not
Pairs = Sequence[tuple[Path, State]]


def show(runs: Sequence[Path]) -> None:
    """Print these runs, newest first as they are, and how each ended."""
    _print([*zip(runs, run_state.of_all(runs, Watchers()), strict=True)], "more", _detail)


def top(find: Callable[[], Sequence[Path]], *, number: int, once: bool) -> None:
    """Show the runs until Ctrl-C; `once`, or into a file or a pipe: one time."""
    watchers = Watchers()

    def newest() -> Pairs:
        runs = find()[:number]
        return shown(runs, run_state.of_all(runs, watchers))

    if once or not sys.stdout.isatty():
        _print(newest(), "what it does", run_activity.brief)
        return
    from rich.live import Live

    try:
        with Live(auto_refresh=False, screen=True) as live:
            while True:
                table = _table(newest(), "what it does", run_activity.brief)
                table.caption = f"{time.strftime('%H:%M:%S')}; Ctrl-C ends this, the runs go on"
                table.caption_justify = "left"
                live.update(table, refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return


def shown(runs: Sequence[Path], states: Sequence[State]) -> list[tuple[Path, State]]:
    """Runs that are not over first, then the last of those that are; newest first in both."""
    pairs = list(zip(runs, states, strict=True))
    going = [pair for pair in pairs if not pair[1].over]
    return going + [pair for pair in pairs if pair[1].over][:ENDED_SHOWN]


def _print(pairs: Pairs, last: str, words: Callable[[Path, State], str]) -> None:
    from rich.console import Console

    json_output.emit("runs", runs=[run_document.brief(*pair) for pair in pairs])
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(width=width).print(_table(pairs, last, words))


def _detail(run: Path, state: State) -> str:
    return state.detail


def _table(pairs: Pairs, last: str, words: Callable[[Path, State], str]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("run", "through", "job", "state", last):
        table.add_column(column, no_wrap=column != last)
    for run, state in pairs:
        known = run_document.brief(run, state)
        where = (str(known[name] or "") for name in ("launcher", "job_id"))
        table.add_row(run.name, *where, state.word, words(run, state))
    return table
