"""Pack an archive for a course: the report, a folder for each part of the assignment, and code.

A part is named after its entry in the study's grid, up to the colon: the runs of "Task 2a: gather
and scatter" are in `task2a/`. The folder also has the commands that repeat these runs, and the code
in which this part differs from the others.

The records and the report are packed again each time. Existing code and README.md are kept, since
students replace ours with their own.
"""

import argparse
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from launch.studies.cells import Cell, Sweep
from muster import records, run_files
from muster.checkout import CHECKOUT
from muster.run_files import CONFIG, ENVIRONMENT, LAUNCH, METRICS, OUTPUT, SUMMARY

FOLDER = "hand_in"
FORMATS = {"zip": "zip", "tar.gz": "gztar"}
COMMANDS = "commands.txt"
ABOUT = "README.md"
TEXT = """\
**The code in `code/` and next to the records is Muster's{texts}, but a course expects your own \
code and your own words.** Use these files to check your work, replace them with your own, and \
state that you used Muster.

The report's tables and figures, and the records in {parts}, were measured by your own runs. \
`commands.txt` there lists the command of each run; run it in Muster's checkout.
"""
CODE = ("configs", "muster", "train")  # all code that workers run
SYNC = CHECKOUT / "train" / "sync"


def archive(text: str) -> Path:
    """The archive that `--hand-in` asks for; for a bare `zip` or `tar.gz`, in the study's folder.

    Raises:
        argparse.ArgumentTypeError: `text` does not name an archive of a known form.
    """
    if text in FORMATS or _form_of(text) is not None:
        return Path(text)
    raise argparse.ArgumentTypeError(
        f"{text!r}: expected zip, tar.gz, or a file name that ends in one of them"
    )


def _form_of(name: str) -> str | None:
    return next((form for form in FORMATS if name.endswith(f".{form}")), None)


def pack(study: Sweep, archive_path: Path) -> Path:
    """Copy the runs that are done to `hand_in/` in a study's folder; return that as an archive."""
    folder = study.folder
    home = folder / FOLDER
    is_bare = str(archive_path) in FORMATS
    target = folder / f"{FOLDER}.{archive_path}" if is_bare else archive_path.absolute()
    form = _form_of(target.name)
    assert form is not None
    home.mkdir(exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    parts: dict[str, list[Cell]] = {}
    for cell in study.cells:
        if cell.state == "done":
            parts.setdefault(part_of(cell), []).append(cell)
            _pack_run(study.run_dir(cell), home / part_of(cell), cell)
    for part, cells in parts.items():
        lines = (f"muster run {shlex.join(cell.words)}  # {cell.id}\n" for cell in cells)
        (home / part / COMMANDS).write_text("".join(lines), encoding="utf-8")
    if not (home / ABOUT).exists():
        (home / ABOUT).write_text(_about(study, list(parts)), encoding="utf-8")
    for name in ("report.pdf", "report.md"):
        if (report := run_files.REPORT.path(folder) / name).exists():
            shutil.copy(report, home)
    if not (home / "code").exists():
        for name in CODE:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / name, home / "code" / name, ignore=ignored)
    base = str(target).removesuffix(f".{form}")
    return Path(shutil.make_archive(base, FORMATS[form], home))


def _about(study: Sweep, parts: list[str]) -> str:
    """The text of README.md: what is Muster's, what was measured, and what a course expects."""
    is_ours = study.texts and (CHECKOUT / study.source).is_file()
    texts = f", and so are the report's texts of `{study.source}`" if is_ours else ""
    folders = ", ".join(f"`{part}/`" for part in parts)
    return TEXT.format(texts=texts, parts=folders)


def part_of(cell: Cell) -> str:
    """The part to which a cell belongs, such as `task2a` for "Task 2a: gather and scatter".

    For a cell without a name, the part is named after its settings.
    """
    words = (cell.name or "").partition(":")[0].lower()
    settings = cell.id.removesuffix(f"_{cell.repeat}")
    return re.sub(r"[^a-z0-9]+", "", words) or settings


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
    train = cell.parsed.train
    assert train is not None  # a study runs Muster's own trainer
    mode = SYNC / "modes" / f"{train.sync}.py"
    if mode.is_file():  # another package may add the mode
        yield mode
    if train.bucket_mb == 0:  # the loop over parameters that assignments ask for
        yield SYNC / "after_backward.py"
