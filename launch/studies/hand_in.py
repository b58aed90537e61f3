"""Pack what a course wants handed in: the report, a folder for each part, code, and an archive.

A part is named by its entry in the study's grid, up to the colon: the runs of "Task 2a: gather and
scatter" are in `task2a/`, with the code in which that part differs from the others.

Records and report are packed again each time. Existing code stays: a student puts their own in the
place of ours.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from configs.plugins import REPOSITORY
from launch.studies.cells import Cell, Sweep
from muster import records, run_files
from muster.run_files import CONFIG, ENVIRONMENT, LAUNCH, METRICS, OUTPUT, SUMMARY

FOLDER = "hand_in"
FORMATS = {"zip": "zip", "tar.gz": "gztar"}
CODE = ("configs", "muster", "train")  # all that workers run
OF_MODES = REPOSITORY / "train" / "sync"


def pack(study: Sweep, form: str) -> Path:
    """Pack what is done into `hand_in/` of a study's folder; return the archive of it."""
    folder, home = study.folder, study.folder / FOLDER
    home.mkdir(exist_ok=True)
    for cell in study.cells:
        if cell.state == "done":
            _pack_run(study.run_dir(cell), home / part_of(cell), cell)
    for name in ("report.pdf", "report.md"):
        if (report := run_files.REPORT.path(folder) / name).exists():
            shutil.copy(report, home)
    if not (home / "code").exists():
        for name in CODE:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, home / "code" / name, ignore=ignored)
    return Path(shutil.make_archive(str(home), FORMATS[form], home))


def part_of(cell: Cell) -> str:
    """`task2a` of "Task 2a: gather and scatter"; its settings' name if it has no title."""
    words = (cell.name or cell.id).partition(":")[0].lower()
    return re.sub(r"[^a-z0-9]+", "", words) or cell.id


def _pack_run(run_dir: Path, part: Path, cell: Cell) -> None:
    shutil.rmtree(part / run_dir.name, ignore_errors=True)
    for kind in (CONFIG, SUMMARY, ENVIRONMENT, METRICS, OUTPUT):
        for file in kind.find(run_dir):
            target = part / run_dir.name / file.relative_to(run_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    command = (records.read(LAUNCH, LAUNCH.path(run_dir)) or {}).get("command")
    (part / run_dir.name / "command.txt").write_text(f"{command}\n", encoding="utf-8")
    for file in _code_of(cell):
        if not (part / file.name).exists():
            shutil.copy(file, part)


def _code_of(cell: Cell) -> Iterator[Path]:
    yield OF_MODES / "modes" / f"{cell.settings['sync']}.py"
    if cell.settings.get("bucket_mb") == 0:  # the loop over parameters that assignments ask for
        yield OF_MODES / "after_backward.py"
