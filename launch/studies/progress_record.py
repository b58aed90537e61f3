"""The progress of a study or sweep: a file in its folder, rewritten after every run."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from muster.writing import write_json


@dataclass
class Note:
    """The result of one cell."""

    id: str
    settings: dict[str, Any]
    nodes: int | None
    repeat: int | None
    run_dir: str  # relative to the folder of the study or sweep
    name: str | None = None  # given by a study
    state: str = "waiting"  # or running, done, failed, stopped
    seconds: float = 0.0
    message: str = ""
    # Of a sweep only.
    words: list[str] | None = None  # of the program, or of our trainer's settings
    place: str | None = None  # its hosts, or its job
    results: dict[str, Any] | None = None


@dataclass
class Notes:
    """All cells of a study or sweep; finished ones are not run again."""

    name: str
    title: str
    about: str
    command: str
    started_unix_s: float
    cells: list[Note] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)  # a study's own, for its report

    def of(self, cell_id: str) -> Note:
        (note,) = (one for one in self.cells if one.id == cell_id)
        return note

    def write(self, path: Path) -> None:
        raw = asdict(self)
        for one in raw["cells"]:
            for name in [name for name, value in one.items() if value is None]:
                del one[name]
        write_json(path, raw)


def earlier(path: Path) -> list[Note]:
    """Each cell's entry in the record at `path`; empty if there is none."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return [Note(**{"nodes": None, "repeat": None, **one}) for one in raw["cells"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
