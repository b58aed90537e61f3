"""Runs the cells of a study one after the other; one that fails does not stop the rest."""

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.studies import around_runs, cell_process
from launch.studies.cell_process import STOPS
from launch.studies.grid import Cell, Study
from launch.studies.link_rate import RatedCluster
from launch.studies.progress_record import Note, Notes
from muster import run_files


def run_all(
    study: Study,
    notes: Notes,
    folder: Path,
    more: Sequence[str],
    tell: Callable[[Note], None],
) -> bool:
    """Run what is not done yet; whether all of it is done then.

    Cells that ask for a link rate come in groups, each on a testbed with that rate, on which the
    study's collectives are measured first. `more` are flags for every run; `tell` is called with
    what has changed.
    """
    left = [cell for cell in study.cells if notes.of(cell).state != "done"]
    rates = list(dict.fromkeys(cell.rate for cell in left))
    for rate in rates:
        group = [cell for cell in left if cell.rate == rate]
        nodes = max(cell.nodes for cell in group)
        with RatedCluster(rate, nodes) as cluster:
            if study.collectives and nodes > 1:
                flags = [*cluster.flags(nodes), *more]
                if around_runs.collectives(study, rate, nodes, folder, flags, cluster.env) in STOPS:
                    return False
            for cell in group:
                note = notes.of(cell)
                note.state, note.message = "running", ""
                notes.write(folder)
                tell(note)
                with cluster.busy(cell.busy, cell.nodes):
                    code = _run(
                        cell, note, folder, [*cluster.flags(cell.nodes), *more], cluster.env
                    )
                notes.write(folder)
                tell(note)
                if code in STOPS:
                    return False
    return all(note.state == "done" for note in notes.cells)


def command_of(cell: Cell, note: Note, folder: Path, more: Sequence[str]) -> list[str]:
    """The command line of one cell's run."""
    place = [f"--logs-dir={folder / 'runs'}", f"--run-id={note.id}", "--overwrite", "--quiet"]
    return [sys.executable, around_runs.SUBMIT, *cell.flags(), *place, *more]


def _run(cell: Cell, note: Note, folder: Path, more: Sequence[str], env: dict[str, str]) -> int:
    run_dir = folder / note.run_dir
    if run_dir.exists():  # of an attempt that failed or was cut short
        shutil.rmtree(run_dir)
    log = folder / "logs" / f"{note.id}.log"
    started = time.monotonic()
    code = cell_process.run(command_of(cell, note, folder, more), env, log)
    note.seconds = time.monotonic() - started
    is_done = code == 0 and run_files.SUMMARY.path(run_dir).exists()
    note.state = "done" if is_done else "failed"
    if not is_done:
        note.message = _why(run_dir, log, code)
    return code


def _why(run_dir: Path, log: Path, code: int) -> str:
    try:
        text = str(json.loads(run_files.EXIT.path(run_dir).read_text())["message"])
    except (OSError, ValueError, KeyError):
        text = ""
    return text or cell_process.last_message(log) or f"exit code {code}"
