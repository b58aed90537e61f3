"""Runs the cells of a study one after the other; one that fails does not stop the rest."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.errors import STOPPED
from configs.plugins import REPOSITORY
from launch.studies import measured
from launch.studies.bed import Bed
from launch.studies.grid import Cell, Study
from launch.studies.notes import Note, Notes

# Its own run was stopped in order, or by a signal: somebody wants all of it to be over.
STOPS = (STOPPED, 130, 143, -signal.SIGINT, -signal.SIGTERM)


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
        with Bed(rate, nodes) as bed:
            if study.collectives and nodes > 1:
                measured.collectives(
                    study, rate, nodes, folder, [*bed.flags(nodes), *more], bed.env
                )
            for cell in group:
                note = notes.of(cell)
                note.state, note.message = "running", ""
                notes.write(folder)
                tell(note)
                with bed.busy(cell.busy, cell.nodes):
                    code = _run(cell, note, folder, [*bed.flags(cell.nodes), *more], bed.env)
                notes.write(folder)
                tell(note)
                if code in STOPS:
                    return False
    return all(note.state == "done" for note in notes.cells)


def command_of(cell: Cell, note: Note, folder: Path, more: Sequence[str]) -> list[str]:
    """The command line of one cell's run."""
    place = [f"--logs-dir={folder / 'runs'}", f"--run-id={note.id}", "--quiet"]
    return [sys.executable, measured.SUBMIT, *cell.flags(), *place, *more]


def _run(cell: Cell, note: Note, folder: Path, more: Sequence[str], env: dict[str, str]) -> int:
    run_dir = folder / note.run_dir
    if run_dir.exists():  # of an attempt that failed or was cut short
        shutil.rmtree(run_dir)
    log = folder / "logs" / f"{note.id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command_of(cell, note, folder, more),
            cwd=REPOSITORY,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        code = _wait(process)
    note.seconds = time.monotonic() - started
    is_done = code == 0 and (run_dir / "summary.json").exists()
    note.state = "done" if is_done else "failed"
    if not is_done:
        note.message = _why(run_dir, log, code)
    return code


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Its exit code; a signal to stop is its to heed, since only it can end its run in order."""

    def passed_on(number: int, _: object) -> None:
        if number != signal.SIGINT:  # a terminal has sent that one to both
            process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, passed_on) for number in numbers]
    try:
        return process.wait()
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _why(run_dir: Path, log: Path, code: int) -> str:
    try:
        text = str(json.loads((run_dir / "exit.json").read_text())["message"])
    except (OSError, ValueError, KeyError):
        text = ""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    return text or (lines[-1].removeprefix("error: ") if lines else f"exit code {code}")
