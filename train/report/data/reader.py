"""A run folder is read as it is: what is missing or broken becomes a note, never a number.

Older versions wrote fewer fields, a run that goes on has a half-written last line, a killed rank
leaves no file, and hosts' clocks differ; none of it ends in a traceback.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from muster import run_files
from train.records.schema import (
    CheckpointRecord,
    CollectivesRecord,
    EvalRecord,
    SplitRecord,
    StepRecord,
    TrafficRecord,
)

Row = dict[str, Any]

KINDS: dict[str, type] = {
    "step": StepRecord,
    "eval": EvalRecord,
    "checkpoint": CheckpointRecord,
    "split": SplitRecord,
    "collectives": CollectivesRecord,
    "traffic": TrafficRecord,
}
FIELDS = {kind: tuple(item.name for item in fields(cls)) for kind, cls in KINDS.items()}
# The fields of `Run` that are one JSON file each.
OF_RUN = {
    "summary": run_files.SUMMARY,
    "launch": run_files.LAUNCH,
    "job": run_files.JOB,
    "prediction": run_files.PREDICTION,
    "end": run_files.EXIT,
}
UNUSED = frozenset({"local_tokens"})  # a report is whole without them
CLOCK_SKEW_S = 2.0


@dataclass
class RecordFile:
    """The records of one rank: rows by kind, each with every field of its kind, None where missing.

    A run may still write to the file: `read_on` goes on where the last whole line ended.
    """

    path: Path
    rank: int
    rows: dict[str, list[Row]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    offset: int = 0  # bytes read so far
    readable: bool = True
    broken: int = 0  # lines that are no JSON
    repeated: int = 0  # steps that were written before
    unknown: Counter[str] = field(default_factory=Counter)  # records by their unknown kind
    missing: Counter[str] = field(default_factory=Counter)  # records by the field they lack

    def read_on(self) -> None:
        """Take the lines that were written since; a half-written one waits for its end."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except OSError:
            self.readable = False
            return
        whole, newline, _ = data.rpartition(b"\n")
        self.offset += len(whole) + len(newline)
        for line in whole.split(b"\n"):
            if line.strip():
                self._take(line)
        by_step = {row["step"]: row for row in self.rows["step"]}
        self.repeated += len(self.rows["step"]) - len(by_step)
        self.rows["step"] = [by_step[step] for step in sorted(by_step)]

    def _take(self, line: bytes) -> None:
        try:
            raw = json.loads(line)
        except ValueError:
            self.broken += 1
            return
        raw = raw if isinstance(raw, dict) else {}
        kind = raw.get("kind", "step" if "loss" in raw else "none")
        if kind not in KINDS or not isinstance(raw.get("step"), int):
            self.unknown[str(kind)[:40]] += 1
            return
        row: Row = {name: _known(raw.get(name)) for name in FIELDS[kind]}
        self.rows[kind].append(row | {"kind": kind, "rank": self.rank})
        absent = [name for name in FIELDS[kind] if name not in raw and name not in UNUSED]
        self.missing.update(f"{kind} record(s) have no {name}" for name in absent)

    @property
    def is_replaced(self) -> bool:
        """Whether a new attempt has begun the file anew."""
        return self.path.exists() and self.path.stat().st_size < self.offset

    @property
    def notes(self) -> list[str]:
        """What of the file was not used, and why."""
        if not self.readable:
            return [f"{self.path.name} cannot be read and was left out"]
        found = []
        if self.repeated:
            found.append(f"{self.repeated} step(s) were written twice; the later one counts")
        if self.broken:
            found.append(f"{self.broken} broken line(s) left out")
        for kind, count in self.unknown.items():
            found.append(f"{count} record(s) of unknown kind {kind!r} left out")
        for which, count in self.missing.items():
            found.append(f"{count} {which} (an older version, perhaps)")
        return [f"{self.path.name}: {text}" for text in found]


@dataclass
class Run:
    """Everything that a run folder holds, and `notes` on what in it is missing or broken."""

    path: Path
    name: str
    config: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    launch: Row = field(default_factory=dict)
    job: Row = field(default_factory=dict)
    end: Row = field(default_factory=dict)  # exit.json
    prediction: Row = field(default_factory=dict)
    environments: dict[str, Row] = field(default_factory=dict)  # by host
    exits: list[Row] = field(default_factory=list)
    agents: list[Row] = field(default_factory=list)  # how each node's part ended
    files: dict[int, RecordFile] = field(default_factory=dict)  # by rank
    attempts: list["Run"] = field(default_factory=list)  # those before the last
    notes: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> dict[int, dict[str, list[Row]]]:
        """The rows of each rank by their kind."""
        return {rank: self.files[rank].rows for rank in sorted(self.files)}

    def rows(self, kind: str) -> list[Row]:
        """The rows of one kind, rank after rank."""
        return [row for rows in self.ranks.values() for row in rows[kind]]

    def first_rank(self, kind: str) -> list[Row]:
        """The rows of the lowest rank that has any of this kind."""
        return next((rows[kind] for rows in self.ranks.values() if rows[kind]), [])

    @property
    def is_foreign(self) -> bool:
        """Whether this is a program of the user's: its config.yaml has settings of the launch."""
        return bool(self.config) and "task" not in self.config

    @property
    def over(self) -> bool:
        return bool(self.end or self.summary)

    def read_on(self) -> None:
        """Take what was written since: records, those of new ranks included, and the end."""
        for rank, path in run_files.METRICS.by_number(self.path).items():
            if rank not in self.files or self.files[rank].is_replaced:
                self.files[rank] = RecordFile(path, rank)
            self.files[rank].read_on()
        unwanted: list[str] = []  # a file that is being written is no reason for a note
        self.config = self.config or read_mapping(run_files.CONFIG.path(self.path), unwanted)
        for name in ("end", "summary"):
            setattr(self, name, read_mapping(OF_RUN[name].path(self.path), unwanted))


def read_run(path: Path) -> Run:
    """The run in `path`, with the attempts before its last one."""
    run = _read_part(path, path.name)
    run.config = read_mapping(run_files.CONFIG.path(path), run.notes)
    for name, one in OF_RUN.items():
        setattr(run, name, read_mapping(one.path(path), run.notes))
    for file in run_files.ENVIRONMENT.find(path):
        run.environments[file.stem] = read_mapping(file, run.notes)
    if not run.config:
        run.notes.append("config.yaml is missing or empty: what was set is not known")
    for number, folder in run_files.attempt_folders(path).items():
        run.attempts.append(_read_part(folder, f"attempt {number}"))
    _note_missing_ranks(run)
    _note_clocks(run)
    return run


def read_mapping(path: Path, notes: list[str]) -> Row:
    """A JSON or YAML file with a mapping; empty if there is none, and noted if it is broken."""
    parse = yaml.safe_load if path.suffix == ".yaml" else json.loads
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError):
        notes.append(f"{path.name} cannot be read and was left out")
        return {}
    return found if isinstance(found, dict) else {}


def _known(value: Any) -> Any:
    """`value`, or None for NaN and infinity, with which nothing can be computed."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_part(path: Path, name: str) -> Run:
    """What an attempt leaves: records and ends."""
    run = Run(path, name)
    run.read_on()
    run.notes += [note for file in run.files.values() for note in file.notes]
    for target, kind in ((run.exits, run_files.RANK_END), (run.agents, run_files.AGENT_END)):
        target += filter(None, (read_mapping(file, run.notes) for file in kind.find(path)))
    return run


def _note_missing_ranks(run: Run) -> None:
    if run.is_foreign and not run.ranks:
        run.notes.append(
            "there are no records: only the trainer that comes with Muster writes them; workers/ "
            "of the run folder has what the program printed"
        )
        return
    steps = [row["step"] for row in run.rows("step")]
    wanted = run.summary.get("world_size")
    if not isinstance(wanted, int):
        known = [rank for one in run.agents for rank in one.get("ranks") or []]
        wanted = max([*known, *run.ranks], default=-1) + 1
    missing = sorted(set(range(wanted)) - set(run.ranks))
    if missing:
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        run.notes.append(
            f"no records of rank {names} ({len(missing)} of {wanted}): figures leave them out"
        )
    short = [
        rank for rank, rows in run.ranks.items() if steps and _last(rows["step"]) < max(steps) - 1
    ]
    if short:
        ends = ", ".join(f"rank {r} at step {_last(run.ranks[r]['step'])}" for r in short[:4])
        run.notes.append(f"records end early: {ends}; others reach step {max(steps)}")


def _note_clocks(run: Run) -> None:
    """Note clocks that differ: of all times on record only those of ends are of several hosts."""
    start, end = run.job.get("started_unix_s"), run.end.get("time_unix_s")
    skew = 0.0
    for one in [*run.exits, *run.agents]:
        time_s = one.get("time_unix_s")
        if not isinstance(time_s, int | float):
            continue
        if isinstance(start, int | float):
            skew = max(skew, start - time_s)
        if isinstance(end, int | float):
            skew = max(skew, time_s - end)
    if skew > CLOCK_SKEW_S:
        run.notes.append(
            f"clocks of the hosts differ by {skew:.0f} s or more: the order in which ranks ended "
            "is not known; durations are measured on one host each and not affected"
        )


def _last(steps: list[Row]) -> int:
    return int(steps[-1]["step"]) if steps else 0
