"""Runs the cells of a study one after the other, on testbeds of the rates that they ask for."""

import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from launch.studies import around_runs, cell_process
from launch.studies.cell_process import STOPS
from launch.studies.link_rate import RatedCluster
from launch.studies.progress_record import Note, Notes
from launch.studies.runner import Work, run_all
from launch.studies.study_file import Cell, Study
from muster import run_files
from muster.writing import read_json


def run_study(
    study: Study,
    notes: Notes,
    folder: Path,
    more: Sequence[str],
    tell: Callable[[Note], None],
    redraw: Callable[[], None],
) -> bool:
    """Run what is not done yet; whether all of it is done then.

    Cells that ask for a link rate come in groups, each on a testbed with that rate, on which the
    study's collectives are measured first. `more` are flags for every run; `tell` is called with
    what has changed, `redraw` several times a second.
    """
    left = [cell for cell in study.cells if notes.of(cell.id).state != "done"]
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
                flags = [*cluster.flags(cell.nodes), *more]
                work = _work(cell, notes.of(cell.id), folder, flags, cluster.env)
                with cluster.busy(cell.busy, cell.nodes):
                    codes, stopped_by = run_all([work], 1, tell, redraw)
                if stopped_by is not None or codes[cell.id] in STOPS:
                    return False
    return all(note.state == "done" for note in notes.cells)


def command_of(cell: Cell, note: Note, folder: Path, more: Sequence[str]) -> list[str]:
    """The command line of one cell's run."""
    place = [f"--logs-dir={folder / 'runs'}", f"--run-id={note.id}", "--overwrite", "--quiet"]
    return [sys.executable, around_runs.SUBMIT, *cell.flags(), *place, *more]


def is_done(folder: Path, note: Note, earlier: Note) -> bool:
    """Whether it was measured: with the same settings, and with its run's summary still there."""
    is_same = earlier.settings == note.settings and earlier.state == "done"
    return is_same and run_files.SUMMARY.path(folder / note.run_dir).exists()


def _work(cell: Cell, note: Note, folder: Path, more: Sequence[str], env: dict[str, str]) -> Work:
    run_dir = folder / note.run_dir
    if run_dir.exists():  # of an attempt that failed or was cut short
        shutil.rmtree(run_dir)
    log = folder / "logs" / f"{note.id}.log"
    command = command_of(cell, note, folder, more)
    return Work(note, lambda place: command, log, partial(_end, note, run_dir, log), env)


def _end(note: Note, run_dir: Path, log: Path, code: int) -> None:
    has_summary = run_files.SUMMARY.path(run_dir).exists()
    note.state = "done" if code == 0 and has_summary else "failed"
    if note.state == "failed":
        note.message = why(run_dir, log, code)


def why(run_dir: Path, log: Path, code: int) -> str:
    """What a run failed from, in its own words where it has left any."""
    end = read_json(run_files.EXIT.path(run_dir)) or {}
    return end.get("message") or cell_process.last_message(log) or f"exit code {code}"
