"""Read a run folder as it is: anything missing or broken becomes a note, never a number.

A run in progress may have a half-written last line, and a killed rank leaves no file. Neither
causes a traceback.
"""

import json
import math
import re
import signal
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

import yaml

from muster import records, run_files
from muster.errors import STOPPED
from muster.printable import printable
from muster.records import dict_of, fits
from muster.run_files import RunFile
from train.records.schema import PHASES, Collective, Record

Row = dict[str, Any]

FIELDS: dict[str, tuple[str, ...]] = {
    record_type.__dataclass_fields__["kind"].default: tuple(
        item.name for item in fields(record_type)
    )
    for record_type in get_args(Record)
}
SIGNALS = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of runs that were told to stop
SAME = 1e-6  # a smaller relative difference of a metric between ranks is ignored


def _is_collective(value: Any) -> bool:
    kinds = (str, [records.is_count], str, records.is_count, str)
    return isinstance(value, list) and len(value) == len(kinds) and all(map(fits, value, kinds))


# The form of each record. A number may be null, because numbers that are not finite are written so.
VALUE_FORMS: dict[Any, Any] = {
    int: (None, records.is_whole),
    float: (None, records.is_number_or_nan),
    str: (None, str),
    list[int]: [records.is_count],
    dict[str, float]: dict_of(str, (None, records.is_number_or_nan)),
    Sequence[Collective]: [_is_collective],
}
KINDS: dict[str, dict[Any, Any]] = {
    record_type.__dataclass_fields__["kind"].default: {
        f"{item.name}?": VALUE_FORMS.get(item.type, str) for item in fields(record_type)
    }
    for record_type in get_args(Record)
}
# How the names of counted and timed fields end; none of their values is below zero.
AMOUNT = re.compile(r"(_s|_bytes|_bytes_.*|samples|tokens|steps|epoch|drift|gain|seconds)$")
PARTS = frozenset(f"{phase}_s" for phase in PHASES)  # of `step_s`
MOST = 1e18  # more than any real amount, but small enough to be summed and squared
ROUNDING_S = 1e-6  # rounding may take a difference of seconds this far below zero


@dataclass
class Run:
    """Everything in a run folder, and `notes` on missing or broken parts."""

    path: Path
    name: str
    config: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    launch: Row = field(default_factory=dict)
    job: Row = field(default_factory=dict)
    end: Row = field(default_factory=dict)  # exit.json
    environments: dict[str, Row] = field(default_factory=dict)  # by host
    exits: list[Row] = field(default_factory=list)
    agents: list[Row] = field(default_factory=list)  # how each node's part ended
    ranks: dict[int, dict[str, list[Row]]] = field(default_factory=dict)  # rows by their kind
    attempts: list["Run"] = field(default_factory=list)  # all attempts before the last one
    notes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # on parts that are expected to be missing

    def lead(self, kind: str) -> int | None:
        """The lowest rank that has a record of this kind."""
        return next((rank for rank, rows in self.ranks.items() if rows[kind]), None)

    @property
    def state(self) -> str:
        """How the run ended, in a word or two."""
        if self.end:
            code = self.end.get("code")
            # a program may also choose to exit with a signal's code
            is_stop = code == STOPPED or (code in SIGNALS and self.end.get("cause") != "program")
            return "done" if code == 0 else "stopped" if is_stop else f"failed ({code})"
        if self.summary:
            return "done"
        bad = [end for end in self.exits if end.get("cause") not in ("done", "stopped")]
        return "failed" if bad else "no end on record"

    @property
    def is_foreign(self) -> bool:
        """Whether this ran a user's program, whose config.yaml has launch settings but no task."""
        return bool(self.config) and "task" not in self.config

    @property
    def workers(self) -> int | None:
        """The number of workers that the run recorded, or else that the files of its ranks show."""
        stated: Any = self.summary.get("world_size")
        if records.is_rank(stated) and stated:
            return int(stated)
        known = [rank for agent in self.agents for rank in agent.get("ranks") or []]
        return max([*known, *self.ranks], default=-1) + 1 or None


def read_run(path: Path) -> Run:
    """Read the run in `path`, with the attempts before its last one."""
    run = _read_part(path, printable(path.name))
    run.config = read_mapping(run_files.CONFIG.path(path), run.notes)
    run.summary = read_mapping(run_files.SUMMARY.path(path), run.notes)
    run.launch = _read_record(run_files.LAUNCH, run_files.LAUNCH.path(path), run.notes)
    run.job = _read_record(run_files.JOB, run_files.JOB.path(path), run.notes)
    run.end = _read_record(run_files.EXIT, run_files.EXIT.path(path), run.notes)
    for file in run_files.ENVIRONMENT.find(path):
        run.environments[file.stem] = read_mapping(file, run.notes)
    if not run.config:
        run.notes.append("config.yaml is missing or empty, so the settings are unknown")
    for number, folder in run_files.attempt_folders(path).items():
        run.attempts.append(_read_part(folder, f"attempt {number + 1}"))
    for part in (*run.attempts, run):
        _average_metrics(part, run.notes)
    _note_missing_ranks(run)
    return run


def _read_record(file: RunFile, path: Path, notes: list[str]) -> Row:
    """Read a record whose form muster.records defines; leave it out and note it if it differs."""
    record = read_mapping(path, notes)
    if record and (why := records.why_unreadable(file, path)):
        notes.append(f"{path.name} was left out: {printable(why)}")
        return {}
    return record


def read_mapping(path: Path, notes: list[str]) -> Row:
    """Read a mapping from a JSON or YAML file; empty if there is no file; note broken files."""
    parse = yaml.safe_load if path.suffix == ".yaml" else json.loads
    try:
        found = as_plain(parse(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        notes.append(f"{path.name} cannot be read and was left out")
        return {}
    return found if isinstance(found, dict) else {}


def as_plain(value: Any) -> Any:
    """Return `value` with all texts, including keys, in a form that any file or terminal can show.

    A program's message may contain colours, or a file name that is not valid UTF-8.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [as_plain(item) for item in value]
    if isinstance(value, dict):
        return {as_plain(key): as_plain(item) for key, item in value.items()}
    return value


def _read_part(path: Path, name: str) -> Run:
    """Read the files of one attempt: records and ends."""
    run = Run(path, name)
    for rank, file in sorted(run_files.METRICS.by_number(path).items()):
        run.ranks[rank] = _read_records(file, rank, run.notes)
    for target, kind in ((run.exits, run_files.RANK_END), (run.agents, run_files.AGENT_END)):
        target += filter(None, (_read_record(kind, file, run.notes) for file in kind.find(path)))
    return run


def _read_records(path: Path, rank: int, notes: list[str]) -> dict[str, list[Row]]:
    """Read rows by kind, each with every field of its kind; missing fields are None."""
    rows: dict[str, list[Row]] = {kind: [] for kind in FIELDS}
    try:
        whole = path.read_bytes().rpartition(b"\n")[0]  # the last line may be half written
    except OSError:
        notes.append(f"{path.name} cannot be read and was left out")
        return rows
    raws, problems = records.json_objects(whole), Counter[str]()
    for raw in raws:
        kind = str(raw.get("kind", "none"))
        if kind in FIELDS and not fits(raw, KINDS[kind]):
            problems[f"{kind} record(s) with a value of the wrong type left out"] += 1
            continue
        if kind not in FIELDS or not fits(raw.get("step"), records.is_count):
            problems[f"record(s) of unknown kind {kind[:40]!r} left out"] += 1
            continue
        row = {name: finite(as_plain(raw.get(name))) for name in FIELDS[kind]}
        if absurd := [name for name in FIELDS[kind] if not _can_be(name, row)]:
            problems[
                f"{kind} record(s) with an impossible {', '.join(absurd)}, which was left out"
            ] += 1
            row |= dict.fromkeys(absurd)
        for name in filter(AMOUNT.search, FIELDS[kind]):
            row[name] = 0.0 if any(value < 0 for value in numbers([row[name]])) else row[name]
        rows[kind].append(row | {"kind": kind, "rank": rank})
        for name in (column for column in FIELDS[kind] if column not in raw):
            problems[f"{kind} record(s) have no {name}"] += 1
    by_step = {row["step"]: row for row in rows["step"]}
    problems["step(s) were written twice; the later record is used"] = len(rows["step"]) - len(
        by_step
    )
    problems["broken line(s) left out"] = sum(map(bool, map(bytes.strip, whole.split(b"\n"))))
    problems["broken line(s) left out"] -= len(raws)
    rows["step"] = [by_step[step] for step in sorted(by_step)]
    notes += [f"{path.name}: {count} {text}" for text, count in problems.items() if count]
    return rows


def finite(value: Any) -> Any:
    """`value`, or None for NaN and infinity, with which nothing can be computed."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _can_be(name: str, row: Row) -> bool:
    """Whether a field's value is possible: not below zero, nor a part longer than its step."""
    (value,) = numbers([row[name]]) or [0.0]
    is_part = name in PARTS and any(whole >= 0 for whole in numbers([row.get("step_s")]))
    most = row["step_s"] * (1 + SAME) + ROUNDING_S if is_part else MOST
    return not AMOUNT.search(name) or -ROUNDING_S <= value <= most


def _average_metrics(run: Run, notes: list[str]) -> None:
    """Replace each metric that differs between ranks by its mean over the ranks, and note this."""
    evaluations: dict[tuple[int, int], list[Row]] = {}  # by step, and by number within the step
    for rows in run.ranks.values():
        before = Counter[int]()
        for row in rows["eval"]:
            step = row["step"]
            if isinstance(row["metrics"], dict):
                evaluations.setdefault((step, before[step]), []).append(row["metrics"])
            before[step] += 1
    differing: dict[str, str] = {}
    for metrics in evaluations.values():
        for name in metrics[0]:
            values = numbers(of_rank.get(name) for of_rank in metrics)
            least = min(values, default=0.0)
            most = max(values, default=0.0)
            if math.isclose(least, most, rel_tol=SAME, abs_tol=SAME):
                continue
            differing[name] = (
                f"{name} from {least:.4g} to {most:.4g} in the last evaluation with a difference"
            )
            for of_rank in metrics:
                of_rank[name] = statistics.fmean(values)
    if differing:
        notes.append(
            f"ranks recorded different metrics ({'; '.join(differing.values())}), and their mean "
            "is shown; pass the same numbers to muster.record(metrics=) on every rank"
        )


def _note_missing_ranks(run: Run) -> None:
    if run.is_foreign and not run.ranks:
        run.remarks.append(
            "no losses or times, because the program does not call muster.record; its output is "
            "in workers/ of the run folder"
        )
        return
    wanted = run.workers or 0
    missing = sorted(set(range(wanted)) - set(run.ranks))
    if missing:
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        run.notes.append(
            f"no records of rank {names} ({len(missing)} of {wanted}), which the numbers leave out"
        )
    steps = {rank: rows["step"] for rank, rows in run.ranks.items()}
    ends = {rank: int(own[-1]["step"]) if own else 0 for rank, own in steps.items()}
    furthest = max(ends.values(), default=0)
    early = [f"rank {rank} at step {end}" for rank, end in ends.items() if end < furthest - 1]
    if early:
        shown = ", ".join(early[:4])
        run.notes.append(f"some records end early: {shown}; the others reach step {furthest}")


def numbers(values: Iterable[Any]) -> list[float]:
    """The finite numbers among `values`."""
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]


def mean(values: Iterable[Any]) -> float | None:
    """The mean of all numbers among `values`; None if there are none."""
    known = numbers(values)
    return statistics.fmean(known) if known else None
