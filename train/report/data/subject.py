"""The subject of a report: runs and, for a study, also the cells without a run."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from muster import run_files
from muster.errors import UsageError
from muster.printable import printable
from train.report.data import frames
from train.report.data.columns import (
    NAME_COLUMN,
    WORKERS,
    Entry,
    Roles,
    is_known,
    selected,
    tell_apart,
    training_settings,
    varying_of,
)
from train.report.data.reader import Row, Run, finite, numbers, read_mapping, read_run

KINDS: dict[type, str] = {str: "a string", list: "a list", dict: "a mapping"}


@dataclass
class Subject:
    """The runs and texts that one report shows."""

    title: str
    about: str = ""
    texts: dict[str, str] = field(default_factory=dict)  # of the study, by heading
    sources: dict[str, str] = field(default_factory=dict)  # files of texts from before the runs
    entries: list[Entry] = field(default_factory=list)
    cells: list[Row] = field(default_factory=list)  # of study.json or sweep.json
    without_run: list[str] = field(default_factory=list)  # states of the cells without a folder
    command: str = ""
    notes: list[str] = field(default_factory=list)
    varying: list[str] = field(default_factory=list)
    roles: Roles = field(default_factory=Roles)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row for each run."""
        return frames.runs(self.entries, self.roles, self.steps, self.evaluations)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row for each step of each rank."""
        return frames.steps(self.entries)

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row for each evaluation."""
        return frames.evaluations(self.entries)

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The loss of each step of a run, next to the loss of its reference."""
        return frames.curves(self.steps, self.runs)

    @property
    def losses(self) -> pd.DataFrame:
        """`curves` without the steps whose loss is not a number."""
        return frames.losses(self.curves)


def read_subject(folders: list[Path]) -> Subject:
    """Read a run, a study, a sweep, or several of them as one subject.

    Raises:
        UsageError: a folder is none of these; the message names it.
    """
    subject = Subject(printable(folders[0].resolve().name))
    for folder in folders:
        _add(subject, folder)
    if len(folders) > 1:
        subject.title = f"{len(folders)} runs compared"
        subject.roles = Roles()  # a study's file describes only its own runs
    _check_roles(subject)
    tell_apart(subject.entries, subject.roles)
    subject.varying = varying_of(subject.entries, subject.roles)
    return subject


def run_folder(text: str) -> Path:
    """Find the folder of a run or study by its path or by its name below logs/.

    Raises:
        UsageError: there is no such folder.
    """
    for path in (Path(text), Path("logs") / text):
        if path.is_dir():
            return path
    raise UsageError(
        f"{text} is not a folder\ntip: give the folder of a run or study, such as logs/<run>"
    )


def _add(subject: Subject, folder: Path) -> None:
    records = [folder / name for name in (run_files.STUDY, run_files.SWEEP)]
    if (record := next(filter(Path.is_file, records), None)) is not None:
        _add_study(subject, record)
    elif _is_run(folder):
        subject.entries.append(_entry(read_run(folder), {}))
    else:
        raise UsageError(
            f"{folder} is not the folder of a run (no config.yaml or metrics/), study (no "
            "study.json) or sweep (no sweep.json)"
            "\ntip: give the folder of a run or study, such as logs/<run>"
        )


def _is_run(folder: Path) -> bool:
    kinds = (run_files.CONFIG, run_files.METRICS, run_files.LAUNCH, run_files.SUMMARY)
    return any((folder / kind.top).exists() for kind in kinds)


def _add_study(subject: Subject, record: Path) -> None:
    folder, study = record.parent, read_mapping(record, subject.notes)
    subject.title = str(study.get("title") or study.get("name") or printable(folder.name))
    subject.about = str(study.get("about") or "")
    texts = study.get("texts")
    texts = texts if isinstance(texts, dict) else {}
    before, source = study.get("texts_before"), study.get("source")
    subject.texts |= texts
    if isinstance(before, dict) and source:
        same = (name for name, text in texts.items() if before.get(name) == text)
        subject.sources |= dict.fromkeys(same, str(source))
    subject.command = str(study.get("command") or "")
    subject.roles = _roles(study, subject.notes)
    cells = [cell for cell in study.get("cells") or [] if isinstance(cell, dict)]
    subject.cells += cells
    for cell in cells:
        path = folder / str(cell.get("run_dir") or "")
        if not cell.get("run_dir") or not _is_run(path):
            if cell.get("state") == "done":
                subject.notes.append(
                    f"cell {cell.get('id')}: its folder {printable(path.name)} is missing"
                )
            state = printable(str(cell.get("state")))
            subject.without_run.append("gone" if state == "done" else state)
            continue
        settings = {str(k).replace("-", "_"): v for k, v in (cell.get("settings") or {}).items()}
        if isinstance(cell.get("nodes"), int):
            settings["nodes"] = cell["nodes"]
        entry = _entry(read_run(path), settings)
        entry.title = str(cell.get("name") or "")
        entry.repeat = cell["repeat"] if isinstance(cell.get("repeat"), int) else 0
        subject.entries.append(entry)
    if not cells:
        subject.notes.append(f"{record.name} lists no cells, because nothing has been run yet")


def _roles(study: Row, notes: list[str]) -> Roles:
    """Read the roles that the study gave to its columns; note each value of the wrong type."""

    def typed_value(name: str, kind: type) -> Any:
        value = study.get(name)
        if value is None or isinstance(value, kind):
            return value
        notes.append(f"study.json: {name} is left out, because it is not {KINDS[kind]}")
        return None

    x = typed_value("x", str)
    series = typed_value("series", list)
    reference = typed_value("reference", dict) or {}
    return Roles(
        as_column(x) if x else WORKERS,
        None if series is None else tuple(map(as_column, series)),
        {as_column(key): value for key, value in reference.items()},
    )


def as_column(key: object) -> str:
    return str(key).replace("-", "_")


def _check_roles(subject: Subject) -> None:
    """Note a column that no run has and drop all roles, or note a reference that fits no run."""
    roles, entries = subject.roles, subject.entries
    if not entries:
        return
    if unknown := [column for column in roles.named() if not is_known(column, entries)]:
        known = {key: None for entry in entries for key in entry.settings}
        subject.notes.append(
            f"study.json: no run has a column {', '.join(unknown)}; the columns are "
            f"{NAME_COLUMN}, {', '.join(sorted(known))}"
        )
        subject.roles = Roles()
    elif roles.reference and not selected(entries, roles):
        wanted = ", ".join(f"{key} {value}" for key, value in roles.reference.items())
        subject.notes.append(f"none of the runs is the study's reference, {wanted}")


def as_cell(value: Any) -> Any:
    """Convert a setting to a table cell; a damaged setting may be a list or not finite."""
    return str(value) if isinstance(value, list | dict) else finite(value)


def _entry(run: Run, settings: Row) -> Entry:
    of_run = {k: v for k, v in run.config.items() if k in training_settings()}
    of_run |= {k: v for k, v in settings.items() if of_run.get(k) is None}
    for name in ("sync", "task", "batch_size", "precision"):
        of_run.setdefault(name, settings.get(name, run.summary.get(name)))
    of_run["nodes"] = len(run.launch.get("nodes") or []) or settings.get("nodes") or 1
    per_node = run.config.get("nproc_per_node")
    planned = of_run["nodes"] * (per_node if isinstance(per_node, int) else 1)
    of_run[WORKERS] = run.workers or planned
    of_run = {name: as_cell(value) for name, value in of_run.items()}
    if isinstance(local := of_run.get("local_batch_size"), int):
        of_run["batch_size"] = local * of_run[WORKERS]
    size = of_run["batch_size"] if numbers([of_run["batch_size"]]) else None
    of_run["batch_size"] = size
    of_run["batch_of_each"] = size / of_run[WORKERS] if size is not None else None
    return Entry(run, of_run)
