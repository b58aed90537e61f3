"""Show what has run, what runs and what is left: a line for each change, and a final table."""

import csv
import io
import sys
from typing import Literal

from rich.table import Table
from rich.text import Text

from configs import console
from launch.studies.cells import Cell, Sweep
from muster import json_output
from muster.printable import csv_cell, on_one_line
from muster.writing import write_text

STATES = {"waiting": "dim", "running": "bold", "done": "green", "failed": "red"}
MOST_RESULTS = 8
PIPE_WIDTH = 250


def tell(sweep: Sweep, cell: Cell) -> None:
    """Write the record and print a line, as a cell has changed."""
    sweep.write()
    json_output.emit("cell", **cell.record())
    line = f"{cell.id}: {cell.state} {cell.message}".rstrip()
    line = line if cell.state == "running" else f"{line} ({how_far(sweep)})"
    print(on_one_line(line), flush=True)


def conclude(sweep: Sweep, stopped_by: int | None = None) -> int:
    """Print and write all results; return the exit code."""
    write_csv(sweep)
    # a title inside the table would be cut to its width
    console.show(f"{sweep.title}: {how_far(sweep)}", table(sweep), pipe_width=PIPE_WIDTH)
    failed = [one for one in sweep.cells if one.state in ("failed", "stopped")]
    for one in failed:
        line = f"{one.id} {one.state}: {one.message}; see {sweep.run_dir(one)}"
        print(on_one_line(line), file=sys.stderr)
    code = 0 if all(one.state == "done" for one in sweep.cells) else 1
    if stopped_by is not None:
        print("error: stopped; the same command goes on with what is left", file=sys.stderr)
        code = 128 + stopped_by
    json_output.emit("cells", exit_code=code, folder=str(sweep.folder), **sweep.record())
    print(f"{'study' if sweep.is_study else 'sweep'} folder: {sweep.folder}")
    return code


def table(sweep: Sweep) -> Table:
    """A row for each cell: the settings in which cells differ, and the results."""
    drawn = Table(box=None, pad_edge=False)
    values = _differing(sweep)
    # texts are in the CSV file
    found = [name for name in columns(sweep) if _is_number(sweep, name)][:MOST_RESULTS]
    place = ["place"] if any(one.place for one in sweep.cells) else []
    for name in (*(values or ["run"]), "state", "seconds", *place, *found, ""):
        side: Literal["left", "right"] = "right" if name in ("seconds", *found) else "left"
        drawn.add_column(on_one_line(name), justify=side)
    for one in sweep.cells:
        own = [str(one.settings.get(name, "")) for name in values] or [one.id]
        drawn.add_row(
            *map(on_one_line, own),
            Text(one.state, style=STATES.get(one.state, "yellow")),
            _seconds(one),
            *(on_one_line(one.place or "") for _ in place),
            *(_short((one.results or {}).get(name)) for name in found),
            on_one_line(one.message),
        )
    return drawn


def columns(sweep: Sweep) -> list[str]:
    """The names of all results, in the order in which runs have them."""
    return list(dict.fromkeys(name for one in sweep.cells for name in one.results or {}))


def write_csv(sweep: Sweep) -> None:
    """Write one line for each cell: its settings, its state, its time and its results."""
    values = dict.fromkeys(name for one in sweep.cells for name in one.settings)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["run", *values, "state", "seconds", "place", *columns(sweep), "message"]
    writer.writerow(map(csv_cell, names))
    for one in sweep.cells:
        found = [(one.results or {}).get(name) for name in columns(sweep)]
        own = [one.settings.get(name, "") for name in values]
        row = [one.id, *own, one.state, _seconds(one), one.place, *found, one.message]
        writer.writerow(map(csv_cell, row))
    write_text(sweep.folder / "results.csv", text.getvalue())


def _differing(sweep: Sweep) -> list[str]:
    """The settings that differ between cells."""
    names = dict.fromkeys(name for one in sweep.cells for name in one.settings)
    return [name for name in names if len({str(one.settings.get(name)) for one in sweep.cells}) > 1]


def _is_number(sweep: Sweep, name: str) -> bool:
    return any(isinstance((one.results or {}).get(name), int | float) for one in sweep.cells)


def _seconds(cell: Cell) -> str:
    return f"{cell.seconds:.1f}" if cell.seconds else ""


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else on_one_line(value)


def how_far(sweep: Sweep) -> str:
    """How many cells are done, and about how long the rest takes."""
    done = [one for one in sweep.cells if one.state == "done"]
    left = sum(one.state in ("waiting", "running") for one in sweep.cells)
    text = f"{len(done)} of {len(sweep.cells)} done"
    at_once = max(1, sum(one.state == "running" for one in sweep.cells))
    if done and left:
        remaining_s = sum(one.seconds for one in done) / len(done) * left / at_once
        text += f", about {max(1, round(remaining_s / 60))} min left"
    return text
