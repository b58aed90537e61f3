"""What a run leaves as its results: `summary.json`, or the last line of rank 0 that is JSON."""

import csv
import io
from pathlib import Path
from typing import Any

from launch.studies.progress_record import Notes
from muster import json_lines, run_files
from muster.writing import read_json, write_text


def results(run_dir: Path) -> dict[str, Any]:
    """The keys and plain values of the JSON object that the program left; {} where it left none."""
    found = read_json(run_files.SUMMARY.path(run_dir))
    if found is None:
        found = (json_lines.last(run_files.OUTPUT.path(run_dir, rank=0)) or [{}])[-1]
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
