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
# What a `Run` has of its folder's JSON files, each a mapping.
OF_RUN = {
    "summary": run_files.SUMMARY,
    "launch": run_files.LAUNCH,
    "job": run_files.JOB,
    "stopped": run_files.STOPPED,
    "prediction": run_files.PREDICTION,
    "end": run_files.EXIT,
}
UNUSED = frozenset({"local_tokens"})  # a report is whole without them
CLOCK_SKEW_S = 2.0


@dataclass
class Records:
    """What one file holds: rows by kind, each with every field of its kind, None where missing."""

    rows: dict[str, list[Row]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    notes: list[str] = field(default_factory=list)


@dataclass
class Run:
    """Everything a run folder says, and `notes` on what it should have said."""

    path: Path
    name: str
    config: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    launch: Row = field(default_factory=dict)
    job: Row = field(default_factory=dict)
    end: Row = field(default_factory=dict)  # exit.json
    stopped: Row = field(default_factory=dict)
    prediction: Row = field(default_factory=dict)
    environments: dict[str, Row] = field(default_factory=dict)  # by host
    exits: list[Row] = field(default_factory=list)
    agents: list[Row] = field(default_factory=list)  # how each node's part ended
    ranks: dict[int, dict[str, list[Row]]] = field(default_factory=dict)
    attempts: list["Run"] = field(default_factory=list)  # those before the last
    notes: list[str] = field(default_factory=list)

    def rows(self, kind: str) -> list[Row]:
        """The rows of one kind, rank after rank."""
        return [row for rank in sorted(self.ranks) for row in self.ranks[rank][kind]]

    def first_rank(self, kind: str) -> list[Row]:
        """The rows of the lowest rank that has any of this kind."""
        for rank in sorted(self.ranks):
            if self.ranks[rank][kind]:
                return self.ranks[rank][kind]
        return []

    @property
    def over(self) -> bool:
        return bool(self.end or self.summary)


def read_run(path: Path) -> Run:
    """The run in `path`, with the attempts before its last one."""
    run = _read_part(path, path.name)
    run.config = _mapping(_yaml(run_files.CONFIG.path(path), run.notes))
    for name, one in OF_RUN.items():
        setattr(run, name, _mapping(read_json(one.path(path), run.notes)))
    for file in run_files.ENVIRONMENT.find(path):
        run.environments[file.stem] = _mapping(read_json(file, run.notes))
    if not run.config:
        run.notes.append("config.yaml is missing or empty: what was set is not known")
    for number, folder in run_files.attempt_folders(path).items():
        run.attempts.append(_read_part(folder, f"attempt {number}"))
    _note_missing_ranks(run)
    _note_clocks(run)
    return run


def read_json(path: Path, notes: list[str]) -> Any:
    """A JSON file; None, with a note if there is a file that is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        notes.append(f"{path.name} cannot be read and was left out")
        return None


def read_records(path: Path, rank: int) -> Records:
    """One JSON-lines file of records, of `rank`."""
    found, unknown, lost, missing = Records(), Counter[str](), 0, Counter[str]()
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        found.notes.append(f"{path.name} cannot be read and was left out")
        return found
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            raw = json.loads(line)
        except ValueError:  # half written: usual for the last line of a run that goes on
            lost += number < len(lines) - 1
            continue
        row = parse_row(raw, rank, unknown, missing)
        if row is not None:
            found.rows[row["kind"]].append(row)
    found.rows["step"] = _latest(found.rows["step"], path.name, found.notes)
    if lost:
        found.notes.append(f"{path.name}: {lost} broken line(s) left out")
    for kind, count in unknown.items():
        found.notes.append(f"{path.name}: {count} record(s) of unknown kind {kind!r} left out")
    for name, count in missing.items():
        kind, _, item = name.partition(".")
        found.notes.append(
            f"{path.name}: {count} {kind} record(s) have no {item} (an older version, perhaps)"
        )
    return found


def parse_row(raw: Any, rank: int, unknown: Counter[str], missing: Counter[str]) -> Row | None:
    """One record with every field of its kind; None where it is none that is known."""
    kind = raw.get("kind", "step" if "loss" in raw else "none") if _is_row(raw) else "none"
    if kind not in KINDS or not isinstance(raw.get("step"), int):
        unknown[str(kind)[:40]] += 1
        return None
    row: Row = {name: _value(raw.get(name)) for name in FIELDS[kind]}
    row["kind"], row["rank"] = kind, rank
    absent = [name for name in FIELDS[kind] if name not in raw and name not in UNUSED]
    missing.update(f"{kind}.{name}" for name in absent)
    return row


def _value(value: Any) -> Any:
    """NaN and infinity are no numbers to reckon with."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_row(value: Any) -> bool:
    return isinstance(value, dict)


def _latest(steps: list[Row], name: str, notes: list[str]) -> list[Row]:
    by_step = {row["step"]: row for row in steps}
    if len(by_step) < len(steps):
        again = len(steps) - len(by_step)
        notes.append(f"{name}: {again} step(s) were written twice; the later one counts")
    return [by_step[step] for step in sorted(by_step)]


def _read_part(path: Path, name: str) -> Run:
    """What an attempt leaves: records and ends."""
    run = Run(path, name)
    for rank, file in run_files.METRICS.by_number(path).items():
        records = read_records(file, rank)
        run.ranks[rank] = records.rows
        run.notes += records.notes
    ends = ((run.exits, run_files.RANK_END), (run.agents, run_files.AGENT_END))
    for target, kind in ends:
        for file in kind.find(path):
            if found := _mapping(read_json(file, run.notes)):
                target.append(found)
    return run


def _note_missing_ranks(run: Run) -> None:
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
    """Seconds of records are differences on one host; only the times of ends can be skewed."""
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


def _mapping(value: Any) -> Row:
    return value if isinstance(value, dict) else {}


def _yaml(path: Path, notes: list[str]) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, yaml.YAMLError):
        notes.append(f"{path.name} cannot be read and was left out")
        return None
