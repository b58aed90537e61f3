"""What a run leaves as its results: `summary.json`, or the last line of rank 0 that is JSON."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from launch.studies.progress_record import Notes
from muster import run_files
from muster.writing import read_json, write_text

TAIL_BYTES = 1_000_000


def results(run_dir: Path) -> dict[str, Any]:
    """The keys and plain values of the JSON object that the program left; {} where it left none."""
    found = read_json(run_files.SUMMARY.path(run_dir))
    if found is None:
        found = _last_object(run_files.OUTPUT.path(run_dir, rank=0))
    return {
        name: value
        for name, value in found.items()
        if value is None or isinstance(value, str | int | float)
    }


def columns(notes: Notes) -> list[str]:
    """The names of all results, in the order in which runs have them."""
    return list(dict.fromkeys(name for one in notes.cells for name in one.results or {}))


def write_csv(notes: Notes, path: Path) -> None:
    """One line for each cell: its values, its state, what it took and what it left."""
    values = list(dict.fromkeys(name for one in notes.cells for name in one.settings))
    names = columns(notes)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *values, "state", "seconds", "place", *names, "message"])
    for one in notes.cells:
        found = one.results or {}
        writer.writerow(
            [one.id, *(one.settings.get(name, "") for name in values), one.state]
            + [f"{one.seconds:.1f}" if one.seconds else "", one.place or ""]
            + [*(found.get(name, "") for name in names), one.message]
        )
    write_text(path, text.getvalue())


def _last_object(output: Path) -> dict[str, Any]:
    """The last line of a worker's output that is a JSON object; {} if there is none."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        if line.lstrip().startswith(b"{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return {}
