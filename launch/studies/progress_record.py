"""What a study has done so far: `study.json` of its folder, rewritten after every run."""

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from launch.studies.grid import Cell, Study
from muster import run_files
from muster.writing import write_json


@dataclass
class Note:
    """What came of one cell."""

    id: str
    settings: dict[str, Any]
    nodes: int
    repeat: int
    run_dir: str  # within the study's folder
    state: str = "waiting"  # running, done, failed
    seconds: float = 0.0
    message: str = ""


@dataclass
class Notes:
    """All of a study; what it has measured already is not measured again."""

    name: str
    title: str
    about: str
    command: str
    started_unix_s: float
    cells: list[Note] = field(default_factory=list)

    def of(self, cell: Cell) -> Note:
        (note,) = (one for one in self.cells if one.id == cell.id)
        return note

    def write(self, folder: Path) -> None:
        write_json(folder / run_files.STUDY, asdict(self))


def begin(study: Study, folder: Path, command: str) -> Notes:
    """The notes of a study that begins, or goes on where it was.

    A cell counts as done only with the same settings, and with its run's summary still there.
    """
    earlier = {one.id: one for one in _earlier(folder)}
    cells = []
    for cell in study.cells:
        note = Note(cell.id, dict(cell.settings), cell.nodes, cell.repeat, f"runs/{cell.id}")
        was = earlier.get(cell.id)
        is_there = run_files.SUMMARY.path(folder / note.run_dir).exists()
        if was is not None and was.settings == note.settings and was.state == "done" and is_there:
            note = was
        cells.append(note)
    return Notes(study.name, study.title, study.about, command, time.time(), cells)


def _earlier(folder: Path) -> list[Note]:
    try:
        raw = json.loads((folder / run_files.STUDY).read_text(encoding="utf-8"))
        return [Note(**one) for one in raw["cells"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
