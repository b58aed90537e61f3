"""The tables behind a report's figures: losses, metrics, seconds and ranks, from records alone.

Seconds per iteration are those of the lowest rank on record: all ranks of a step end together, in
its collective. The first step of each attempt is left out, since it also pays for what happens
once. A loss curve is compared with that of a reference, whose settings may differ in what leaves
losses alone: one rule makes all sync modes and splits compute the same mean gradient, so their
losses should differ by rounding alone.
"""

import math
import signal
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, ParamSpec

import pandas as pd

from muster.errors import STOPPED
from train.records.schema import PHASES
from train.report.data.columns import NAME, Entry, by_label, loss_reference
from train.report.data.quantities import estimate
from train.report.data.reader import Row, Run, mean, numbers
from train.report.data.subject import Subject

P = ParamSpec("P")
SIGNALS = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes of runs that were told to stop
FIRST = 5  # losses that are shown one by one, as in the courses


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table; unknown values stay None, and whole numbers stay whole."""
    return pd.DataFrame(list(rows), dtype=object)


def as_table(rows: Callable[P, Iterable[Row]]) -> Callable[P, pd.DataFrame]:
    """A function that yields rows, as one that returns their table."""

    @wraps(rows)
    def table(*args: P.args, **how: P.kwargs) -> pd.DataFrame:
        return frame(rows(*args, **how))

    return table


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table; unknown values are None."""
    rows: list[Row] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


def timed(run: Run) -> list[Row]:
    """The timed steps of the last attempt: all but its first."""
    steps = run.first_rank("step")
    return [row for row in steps[1:] if numbers([row["step_s"]])]


def all_steps(run: Run) -> list[Row]:
    """Each step once, over all attempts; the latest attempt counts."""
    found: dict[int, Row] = {}
    for part in [*run.attempts, run]:
        steps = part.first_rank("step")
        if steps:  # an attempt continues from a checkpoint: earlier steps after it are void
            found = {step: row for step, row in found.items() if step < steps[0]["step"]}
        found |= {row["step"]: row for row in steps}
    return [found[step] for step in sorted(found)]


def evaluations(run: Run) -> list[Row]:
    by_step = {row["step"]: row for part in [*run.attempts, run] for row in part.first_rank("eval")}
    return [by_step[step] for step in sorted(by_step)]


def curve(run: Run) -> pd.Series:
    """The loss by step; NaN where it is not a number."""
    rows = {row["step"]: row["loss"] for row in all_steps(run)}
    return pd.to_numeric(pd.Series(rows, dtype=object), errors="coerce").astype(float)


def apart(base: Entry | None, entry: Entry) -> pd.Series:
    """How far losses are apart, by the steps at which both are numbers; empty without a base."""
    known = curve(base.run) if base else pd.Series(dtype=float)
    return (curve(entry.run) - known).abs().dropna()


@as_table
def losses(subject: Subject) -> Iterator[Row]:
    for entry in subject.entries:
        base = reference(entry, subject)
        known, name = (curve(base.run), base.name) if base else ({}, None)
        for step, loss in curve(entry.run).dropna().items():
            row = _of_run(entry) | {"step": step, "loss": loss, "reference": name}
            yield row | {"difference": loss - known.get(step, math.nan)}


def _of_run(entry: Entry) -> Row:
    return {"run": entry.name, "series": entry.series, NAME: entry.title or None}


def reference(entry: Entry, subject: Subject) -> Entry | None:
    """The run whose losses `entry` should have; None if that is `entry` itself."""
    return loss_reference(entry, subject.entries, subject.roles)


def _same_draw(entry: Entry, subject: Subject) -> Entry | None:
    """The first run of the same reference with as many workers, and the same split and seed.

    Its dropout draws the same masks.
    """

    def draw(one: Entry) -> tuple[object, ...]:
        base = reference(one, subject) or one
        seed, split = one.settings.get("seed"), one.settings.get("split") or "even"
        return base.name, one.workers, split, seed

    first = next(one for one in subject.entries if draw(one) == draw(entry))
    return None if first is entry else first


@as_table
def first_losses(subject: Subject) -> Iterator[Row]:
    """The first losses of each run, and its differences from its reference and a similar run."""
    for entry in subject.entries:
        base, like = reference(entry, subject), _same_draw(entry, subject)
        # with dropout only losses of `like` must agree
        gaps, of_like = apart(base, entry), apart(None if like is base else like, entry)
        own = curve(entry.run).dropna()
        row: Row = {"run": entry.name} | {f"loss_{n}": own.get(n) for n in range(1, FIRST + 1)}
        row["reference"] = base.name if base else None
        row["steps_compared"] = len(gaps) or None
        row["largest_difference"] = gaps.max()
        row["at_step"] = int(gaps.idxmax()) if len(gaps) else None
        row["same_workers_and_split"] = like.name if like and len(of_like) else None
        row["difference_to_it"] = of_like.max()
        if len(own):
            yield row


@as_table
def metrics(subject: Subject) -> Iterator[Row]:
    for entry in subject.entries:
        for row in evaluations(entry.run):
            at = _of_run(entry) | {"epoch": row["epoch"], "step": row["step"]}
            for name, value in (row["metrics"] or {}).items():
                if numbers([value]):
                    yield at | {"metric": name, "value": value}


@as_table
def evaluated(subject: Subject) -> Iterator[Row]:
    """A row for each evaluation, a column for each metric."""
    for entry in subject.entries:
        for row in evaluations(entry.run):
            at = {"run": entry.name, "epoch": row["epoch"], "step": row["step"]}
            every = (row["metrics"] or {}).items()
            known = {name: one for name, one in every if numbers([one]) and name not in at}
            if known:
                yield at | known


def main_metrics(subject: Subject) -> list[str]:
    """The first metric, of each evaluation set; or else the loss of evaluations."""
    known = [row["metrics"] for one in subject.entries for row in evaluations(one.run)]
    names = list(dict.fromkeys(name for one in known for name in one or {}))
    first = next((name for name in names if not name.startswith("eval_loss")), None)
    if first is None:
        return names[:1]
    stem = first.rpartition("_")[0]
    return [name for name in names if name == first or (stem and name.startswith(f"{stem}_"))]


def last_metric(entry: Entry, name: str) -> Any:
    """Its value in the last evaluation."""
    rows = evaluations(entry.run)
    return (rows[-1]["metrics"] or {}).get(name) if rows else None


def cells(subject: Subject) -> list[tuple[str, list[Entry]]]:
    """The repeats of each label."""
    return list(by_label(subject.entries).items())


@as_table
def seconds(subject: Subject) -> Iterator[Row]:
    for label, entries in cells(subject):
        per_run = [rows for entry in entries if (rows := timed(entry.run))]
        found = of_runs(per_run)
        if not found:
            continue
        rows, workers = [row for one in per_run for row in one], entries[0].workers
        mean_s = found["mean_s"]
        row: Row = {"run": label, "sync": entries[0].sync}
        row |= {"precision": entries[0].settings.get("precision"), "workers": workers}
        row |= {"runs": len(per_run), "steps": len(rows)} | found
        parts = {f"{phase}_s": mean_of_runs(per_run, f"{phase}_s") for phase in PHASES}
        known, samples = numbers(parts.values()), mean_of_runs(per_run, "samples")
        per_s = samples / mean_s if samples and mean_s else None
        is_whole = len(known) == len(parts)
        row |= parts | {"other_s": max(0.0, mean_s - sum(known)) if is_whole else None}
        hidden = mean_of_runs(per_run, "overlapped_s") if workers > 1 else None
        waited = parts["sync_s"] if hidden is not None else None
        both = (hidden or 0.0) + (waited or 0.0)
        row |= {"overlapped_s": hidden, "exposed_s": waited}
        row["waited_share"] = waited / mean_s if waited is not None and mean_s else None
        row["hidden_share"] = (hidden or 0.0) / both if both else None
        row["samples_per_s"] = per_s
        yield row | {"samples_per_s_per_worker": per_s / workers if per_s else None}


@as_table
def per_rank(subject: Subject) -> Iterator[Row]:
    """Each rank's part; its own work is what it does before it waits for others."""
    for entry in subject.entries:
        for rank, kinds in entry.run.ranks.items() if entry.workers > 1 else ():
            steps = kinds["step"][1:]
            step_s, local = mean_of(steps, "step_s"), mean_of(steps, "local_samples")
            if step_s:
                own = estimate(own_work_s(row) for row in steps)
                row = {"run": entry.name, "rank": rank, "steps": len(steps), "local_samples": local}
                row |= {"own_work_s": own.get("mean_s")}
                row |= {name: own.get(name) for name in ("low_s", "high_s")}
                row["sync_s"] = mean_of(steps, "sync_s")
                yield row | {"samples_per_s": local / step_s if local is not None else None}


def own_work_s(row: Row) -> float | None:
    """Seconds of a step before its rank can wait for others."""
    parts = [row["data_s"], row["forward_s"], row["backward_s"]]
    return sum(parts) if None not in parts else None


def of_runs(per_run: list[list[Row]]) -> dict[str, Any]:
    """Over the steps of one run; or over the means of several runs."""
    if len(per_run) > 1:
        return estimate(mean_of(rows, "step_s") for rows in per_run)
    return estimate(row["step_s"] for rows in per_run for row in rows)


def mean_of_runs(per_run: list[list[Row]], name: str) -> float | None:
    """The mean over runs of each one's mean, as that of their seconds; None unless all have it."""
    if not all(numbers([row[name]]) for rows in per_run for row in rows):
        return None
    return mean(mean_of(rows, name) for rows in per_run)


def mean_of(rows: Iterable[Row], name: str) -> float | None:
    """The mean of one column; None if no row has a number in it."""
    return mean(row[name] for row in rows)


def add_up(values: Iterable[Any]) -> float | None:
    """The sum; None if one of `values` is not a number."""
    every = list(values)
    return sum(every) if len(numbers(every)) == len(every) else None


def state(entry: Entry) -> str:
    run: Any = entry.run
    if run.end:
        code = run.end.get("code")
        # a program may end with the code of a signal by itself
        is_stop = code == STOPPED or (code in SIGNALS and run.end.get("cause") != "program")
        return "done" if code == 0 else "stopped" if is_stop else f"failed ({code})"
    if run.summary:
        return "done"
    bad = [one for one in run.exits if one.get("cause") not in ("done", "stopped")]
    return "failed" if bad else "no end on record"
