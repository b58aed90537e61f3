"""List runs in a table of 80 columns: a line for each run, or for all runs of a sweep."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from launch.runs import run_record
from launch.runs.run_state import RunStatus
from launch.runs.watching import run_activity
from muster import records, run_files
from muster.printable import counted, duration, on_one_line

COLUMNS = ("run", "state", "started", "took", "workers", "cause")
EXIT_CODE = re.compile(r"^exit code \d+: ")  # before a cause that is a sentence
COLORS = {"done": "green", "failed": "red", "lost": "red", "unreadable": "red", "running": "cyan"}


def rows_of(runs: Sequence[Path]) -> list[list[Path]]:
    """The runs of each row; all runs of a sweep or study are in the row of their first one."""
    rows: dict[Path, list[Path]] = {}
    for run in runs:
        sweep = run.parent.parent
        files = (sweep / name for name in (run_files.SWEEP, run_files.STUDY))
        is_of_sweep = run.parent.name == "runs" and any(file.exists() for file in files)
        rows.setdefault(sweep if is_of_sweep else run, []).append(run)
    return [*rows.values()]


def table(rows: Sequence[Sequence[tuple[Path, RunStatus]]]) -> Table:
    """A table of these rows, in the given order; the cause is cut to the remaining width."""
    drawn = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        side: Literal["left", "right"] = "right" if column in ("took", "workers") else "left"
        # only the last column shrinks: rich narrows columns whose text may wrap
        drawn.add_column(column, justify=side, no_wrap=column != "cause")
    for row in rows:
        first, state = row[0]
        words = Counter(state.word for _, state in row)
        name, cause = first.name, EXIT_CODE.sub("", run_activity.one_line(first, state))
        if len(row) > 1:
            name = f"{first.parent.parent.name} ({counted(len(row), 'run')})"
            cause = ", ".join(f"{count} {word}" for word, count in words.items())
        word = next((word for word in ("running", "failed") if word in words), state.word)
        began = [run_record.started_unix_s(run) for run, _ in row]
        ended = [ended_unix_s for run, state in row if (ended_unix_s := _ended_unix_s(run, state))]
        workers = max(len(run_record.nodes_of_ranks(run)) for run, _ in row)
        drawn.add_row(
            on_one_line(name),
            Text(word, style=COLORS.get(word, "yellow")),
            _clock(min(began)),
            duration(max(ended) - min(began)) if ended else "",
            str(workers or ""),
            Text(on_one_line(cause), no_wrap=True, overflow="ellipsis"),
        )
    return drawn


def _ended_unix_s(run_dir: Path, state: RunStatus) -> float | None:
    """When the run ended, or now if it is not over; None if unknown."""
    if not state.is_over:
        return time.time()
    end = run_record.read_end(run_dir) or {}
    return float(end["time_unix_s"]) if records.is_number(end.get("time_unix_s")) else None


def _clock(unix_s: float) -> str:
    """The time of day for a time today, else the date."""
    then, now = time.localtime(unix_s), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%b %d", then)
