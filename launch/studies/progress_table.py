"""Show the progress of a sweep: a line for each change of a cell, and a table at the end."""

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


def report_change(sweep: Sweep, cell: Cell) -> None:
    """Write the record and print a line after a cell has changed."""
    sweep.write()
    json_output.emit("cell", **cell.record())
    line = f"{cell.id}: {cell.state} {cell.message}".rstrip()
    line = line if cell.state == "running" else f"{line} ({progress_summary(sweep)})"
    print(on_one_line(line), flush=True)


def conclude(sweep: Sweep, stopped_by: int | None = None) -> int:
    """Print and write all results; return the exit code."""
    write_csv(sweep)
    # a title inside the table would be cut to its width
    console.show(f"{sweep.title}: {progress_summary(sweep)}", table(sweep), pipe_width=PIPE_WIDTH)
    failed = [cell for cell in sweep.cells if cell.state in ("failed", "stopped")]
    for cell in failed:
        line = f"{cell.id} {cell.state}: {cell.message}; see {sweep.run_dir(cell)}"
        print(on_one_line(line), file=sys.stderr)
    code = 1 if sweep.unfinished else 0
    if stopped_by is not None:
        print(
            "error: stopped; run the same command again to continue with what is left",
            file=sys.stderr,
        )
        code = 128 + stopped_by
    json_output.emit("cells", exit_code=code, folder=str(sweep.folder), **sweep.record())
    print(f"{sweep.kind} folder: {sweep.folder}")
    return code


def table(sweep: Sweep) -> Table:
    """A row for each cell: the settings in which cells differ, and the results."""
    drawn = Table(box=None, pad_edge=False)
    values = _differing(sweep)
    # only the CSV file has the results that are texts
    results = [name for name in columns(sweep) if _is_number(sweep, name)][:MOST_RESULTS]
    place = ["place"] if any(cell.place for cell in sweep.cells) else []
    for name in (*(values or ["run"]), "state", "seconds", *place, *results, ""):
        side: Literal["left", "right"] = "right" if name in ("seconds", *results) else "left"
        drawn.add_column(on_one_line(name), justify=side)
    for cell in sweep.cells:
        first = [str(cell.settings.get(name, "")) for name in values] or [cell.id]
        drawn.add_row(
            *map(on_one_line, first),
            Text(cell.state, style=STATES.get(cell.state, "yellow")),
            _seconds(cell),
            *(on_one_line(cell.place or "") for _ in place),
            *(_short((cell.results or {}).get(name)) for name in results),
            on_one_line(cell.message),
        )
    return drawn


def columns(sweep: Sweep) -> list[str]:
    """The names of the results, in their order in runs, without those that repeat a setting."""
    names = dict.fromkeys(name for cell in sweep.cells for name in cell.results or {})
    return [name for name in names if not _repeats_a_setting(sweep, name)]


def _repeats_a_setting(sweep: Sweep, name: str) -> bool:
    """Whether this result equals the setting in each run, since trainers report their settings."""
    return all(
        str(cell.results[name]) == str(cell.settings.get(name))
        for cell in sweep.cells
        if cell.results and name in cell.results
    )


def write_csv(sweep: Sweep) -> None:
    """Write one line for each cell: its settings, its state, its time and its results."""
    settings = dict.fromkeys(name for cell in sweep.cells for name in cell.settings)
    results = columns(sweep)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["run", *settings, "state", "seconds", "place", *results, "message"]
    writer.writerow(map(csv_cell, names))
    for cell in sweep.cells:
        values = [cell.settings.get(name, "") for name in settings]
        outcome = [cell.state, _seconds(cell), cell.place]
        outcome += [(cell.results or {}).get(name) for name in results]
        writer.writerow(map(csv_cell, [cell.id, *values, *outcome, cell.message]))
    write_text(sweep.folder / "results.csv", text.getvalue())


def _differing(sweep: Sweep) -> list[str]:
    """The settings that differ between cells."""
    names = dict.fromkeys(name for cell in sweep.cells for name in cell.settings)
    values = {name: {str(cell.settings.get(name)) for cell in sweep.cells} for name in names}
    return [name for name in names if len(values[name]) > 1]


def _is_number(sweep: Sweep, name: str) -> bool:
    return any(isinstance((cell.results or {}).get(name), int | float) for cell in sweep.cells)


def _seconds(cell: Cell) -> str:
    return f"{cell.seconds:.1f}" if cell.seconds else ""


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else on_one_line(value)


def progress_summary(sweep: Sweep) -> str:
    """How many cells are done, and about how long the rest will take."""
    done = [cell for cell in sweep.cells if cell.state == "done"]
    left = sum(cell.state in ("waiting", "running") for cell in sweep.cells)
    text = f"{len(done)} of {len(sweep.cells)} done"
    at_once = max(1, sum(cell.state == "running" for cell in sweep.cells))
    if done and left:
        remaining_s = sum(cell.seconds for cell in done) / len(done) * left / at_once
        text += f", about {max(1, round(remaining_s / 60))} min left"
    return text
