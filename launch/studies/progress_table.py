"""Show what has run, what runs and what is left: a line for each change, and a final table."""

import csv
import io
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from launch.studies.progress_record import Note, Notes
from muster import json_output
from muster.writing import write_text

STATES = {"waiting": "dim", "running": "bold", "done": "green", "failed": "red"}
MOST_RESULTS = 8


def teller(notes: Notes, path: Path) -> Callable[[Note], None]:
    """A function that writes the record at `path` and prints a line, for each changed cell."""

    def tell(note: Note) -> None:
        notes.write(path)
        json_output.emit("cell", **asdict(note))
        line = f"{note.id}: {note.state} {note.message}".rstrip()
        print(line if note.state == "running" else f"{line} ({how_far(notes)})", flush=True)

    return tell


def conclude(notes: Notes, folder: Path, stopped_by: int | None) -> int:
    """Print and write all results; return the exit code."""
    write_csv(notes, folder / "results.csv")
    # lines in a file or a pipe need not be broken
    width = None if sys.stdout.isatty() else 250
    Console(width=width).print(table(notes))
    failed = [one for one in notes.cells if one.state in ("failed", "stopped")]
    for one in failed:
        print(f"{one.id} {one.state}: {one.message}; see {folder / one.run_dir}", file=sys.stderr)
    code = 0 if all(one.state == "done" for one in notes.cells) else 1
    if stopped_by is not None:
        print("error: stopped; the same command goes on with what is left", file=sys.stderr)
        code = 128 + stopped_by
    json_output.emit("cells", exit_code=code, folder=str(folder), **asdict(notes))
    return code


def table(notes: Notes) -> RenderableType:
    """A row for each cell: the settings in which cells differ, and the results."""
    drawn = Table(box=None, pad_edge=False)
    values = _differing(notes) or ["run"]
    found = [name for name in columns(notes) if _is_shown(notes, name)][:MOST_RESULTS]
    has_place = any(one.place for one in notes.cells)
    for name in (*values, "state", "seconds", *(["place"] if has_place else []), *found, ""):
        drawn.add_column(name, justify="right" if name in ("seconds", *found) else "left")
    for one in notes.cells:
        own = [str(one.settings.get(name, "")) for name in values]
        own = own if values != ["run"] else [one.id]
        place = [one.place or ""] if has_place else []
        left = [_short((one.results or {}).get(name)) for name in found]
        drawn.add_row(
            *map(escape, own),
            f"[{STATES.get(one.state, 'yellow')}]{one.state}[/]",
            f"{one.seconds:.1f}" if one.seconds else "",
            *place,
            *left,
            escape(one.message),
        )
    # a title inside the table would be cut to its width
    return Group(escape(f"{notes.title}: {how_far(notes)}"), drawn)


def columns(notes: Notes) -> list[str]:
    """The names of all results, in the order in which runs have them."""
    return list(dict.fromkeys(name for one in notes.cells for name in one.results or {}))


def write_csv(notes: Notes, path: Path) -> None:
    """Write one line for each cell: its settings, its state, its time and its results."""
    values = dict.fromkeys(name for one in notes.cells for name in one.settings)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *values, "state", "seconds", "place", *columns(notes), "message"])
    for one in notes.cells:
        took = f"{one.seconds:.1f}" if one.seconds else ""
        found = [(one.results or {}).get(name, "") for name in columns(notes)]
        own = [one.settings.get(name, "") for name in values]
        writer.writerow([one.id, *own, one.state, took, one.place or "", *found, one.message])
    write_text(path, text.getvalue())


def _differing(notes: Notes) -> list[str]:
    """The settings that differ between cells."""
    names = dict.fromkeys(name for one in notes.cells for name in one.settings)
    return [name for name in names if len({str(one.settings.get(name)) for one in notes.cells}) > 1]


def _is_shown(notes: Notes, name: str) -> bool:
    """Whether the table shows a result: numbers, since texts are in the CSV file."""
    return any(isinstance((one.results or {}).get(name), int | float) for one in notes.cells)


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else escape(str(value))


def how_far(notes: Notes) -> str:
    """How many cells are done, and about how long the rest takes."""
    done = [one for one in notes.cells if one.state == "done"]
    left = sum(one.state in ("waiting", "running") for one in notes.cells)
    text = f"{len(done)} of {len(notes.cells)} done"
    at_once = max(1, sum(one.state == "running" for one in notes.cells))
    if done and left:
        remaining_s = sum(one.seconds for one in done) / len(done) * left / at_once
        text += f", about {max(1, round(remaining_s / 60))} min left"
    return text
