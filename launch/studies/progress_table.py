"""What ran, what runs and what is left, in one table that is redrawn in place."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from launch.studies import cell_results
from launch.studies.progress_record import Note, Notes

STATES = {"waiting": "dim", "running": "bold", "done": "green", "failed": "red"}
MOST_ROWS = 20
MOST_RESULTS = 8
REDRAW_S = 1.0


class Watching:
    """Shows a table, redrawn each second; where there is no terminal, a line for each change.

    `path` is where the record is written at each change.
    """

    def __init__(self, notes: Notes, path: Path) -> None:
        self._notes, self._path, self._console = notes, path, Console()
        self._redrawn_s = 0.0
        # no thread of its own: processes are started beside it
        self._live = Live(
            console=self._console,
            get_renderable=self._table,
            auto_refresh=False,
            transient=True,  # all of it is printed at the end
        )

    def __enter__(self) -> "Watching":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.refresh()
        self._live.stop()

    def tell(self, note: Note) -> None:
        """This cell is now in another state."""
        self._notes.write(self._path)
        self._redrawn_s = 0.0
        if not self._console.is_terminal:
            print(f"{note.id}: {note.state} {note.message}".rstrip(), flush=True)

    def redraw(self) -> None:
        """Show how long it has taken by now, if that was not done just before."""
        if self._console.is_terminal and time.monotonic() - self._redrawn_s >= REDRAW_S:
            self._redrawn_s = time.monotonic()
            self._live.refresh()

    def _table(self) -> RenderableType:
        return whole(self._notes, around(self._notes.cells))


def conclude(notes: Notes, folder: Path, stopped_by: int | None) -> int:
    """Show and write what came of all; the exit code."""
    cell_results.write_csv(notes, folder / "results.csv")
    # a file or a pipe has no width that lines must be broken for
    width = None if sys.stdout.isatty() else 250
    Console(width=width).print(whole(notes, notes.cells))
    failed = [one for one in notes.cells if one.state in ("failed", "stopped")]
    for one in failed:
        print(f"{one.id} {one.state}: {one.message}; see {folder / one.run_dir}", file=sys.stderr)
    if stopped_by is not None:
        print("error: stopped; the same command goes on with what is left", file=sys.stderr)
        return 128 + stopped_by
    return 0 if all(one.state == "done" for one in notes.cells) else 1


def whole(notes: Notes, shown: Sequence[Note]) -> RenderableType:
    """The table with these of its cells: what differs between them, and what came of each."""
    drawn = Table(box=None, pad_edge=False)
    values = _differing(notes) or ["run"]
    found = [name for name in cell_results.columns(notes) if _is_shown(notes, name)][:MOST_RESULTS]
    has_place = any(one.place for one in notes.cells)
    for name in (*values, "state", "seconds", *(["place"] if has_place else []), *found, ""):
        drawn.add_column(name, justify="right" if name in ("seconds", *found) else "left")
    for one in shown:
        own = [str(one.settings.get(name, "")) for name in values]
        own = own if values != ["run"] else [one.id]
        place = [one.place or ""] if has_place else []
        left = [_short((one.results or {}).get(name)) for name in found]
        drawn.add_row(
            *map(escape, own), state(one), seconds(one), *place, *left, escape(one.message)
        )
    return Group(escape(title_of(notes)), drawn)  # a title of its own would be cut to its width


def _differing(notes: Notes) -> list[str]:
    """The settings that are not the same of all cells."""
    names = dict.fromkeys(name for one in notes.cells for name in one.settings)
    return [name for name in names if len({str(one.settings.get(name)) for one in notes.cells}) > 1]


def _is_shown(notes: Notes, name: str) -> bool:
    """Numbers are; texts are in the CSV file."""
    return any(isinstance((one.results or {}).get(name), int | float) for one in notes.cells)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else escape(str(value))


def title_of(notes: Notes) -> str:
    """How far all of it has come."""
    done = [one for one in notes.cells if one.state == "done"]
    left = sum(one.state in ("waiting", "running") for one in notes.cells)
    title = f"{notes.title}: {len(done)} of {len(notes.cells)} done"
    at_once = max(1, sum(one.state == "running" for one in notes.cells))
    if done and left:
        remaining_s = sum(one.seconds for one in done) / len(done) * left / at_once
        title += f", about {max(1, round(remaining_s / 60))} min left"
    return title


def state(one: Note) -> str:
    return f"[{STATES.get(one.state, 'yellow')}]{one.state}[/]"


def seconds(one: Note) -> str:
    return f"{one.seconds:.1f}" if one.seconds else ""


def around(cells: list[Note]) -> list[Note]:
    """Those that are shown where not all can be: around the first that is not over."""
    at = next((n for n, one in enumerate(cells) if one.state in ("waiting", "running")), len(cells))
    first = max(0, min(at - MOST_ROWS // 2, len(cells) - MOST_ROWS))
    return cells[first : first + MOST_ROWS]
