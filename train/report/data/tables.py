"""The tables behind a report's figures: losses, metrics, seconds and ranks, from records alone.

Seconds per iteration are those of the lowest rank on record: all ranks of a step end together, in
its collective. The first step of each attempt is left out, since it also pays for what happens
once. A loss curve is compared with that of a reference, which has the same settings but for those
in `FREE`: one rule makes all sync modes and splits compute the same mean gradient, so their losses
should differ by rounding alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from train.records.summary import PHASES
from train.report.data.reader import Row, Run
from train.report.data.statistics import Estimate, estimate, mean, numbers
from train.report.data.subject import Entry, Subject

# Settings that do not change the loss curve.
FREE = frozenset(
    "sync workers nodes split bucket_mb threads data_workers timeout_s backend device"
    " save_model evaluate eval_batch_size checkpoint_every keep_last keep_best max_steps network"
    " join_timeout_s profile max_restarts stop_signal rate busy overlap sparse_rows"
    " length_balance pad compile".split()
)
INEXACT = frozenset({"local_sgd"})  # modes whose loss curve depends on the number of workers


@dataclass
class Table:
    """The data of one figure or table of the report, a row a mapping by column.

    Columns that are not given are those of the first row.
    """

    name: str
    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        self.columns = self.columns or list(row)
        self.rows.append({name: row.get(name) for name in self.columns})

    def column(self, name: str, **where: Any) -> list[Any]:
        return [row[name] for row in self.select(**where)]

    def select(self, **where: Any) -> list[Row]:
        return [row for row in self.rows if all(row[key] == value for key, value in where.items())]

    def unique(self, name: str) -> list[Any]:
        return list(dict.fromkeys(row[name] for row in self.rows))


def timed(run: Run) -> list[Row]:
    """The steps of the last attempt that seconds are taken from: all but its first."""
    steps = run.first_rank("step")
    return [row for row in steps[1:] if numbers([row["step_s"]])]


def all_steps(run: Run) -> list[Row]:
    """Each step once, over all attempts: that of the latest attempt counts."""
    found: dict[int, Row] = {}
    for part in [*run.attempts, run]:
        steps = part.first_rank("step")
        if steps:  # an attempt goes on from a checkpoint: what came after that is void
            found = {step: row for step, row in found.items() if step < steps[0]["step"]}
        found |= {row["step"]: row for row in steps}
    return [found[step] for step in sorted(found)]


def evaluations(run: Run) -> list[Row]:
    by_step = {row["step"]: row for part in [*run.attempts, run] for row in part.first_rank("eval")}
    return [by_step[step] for step in sorted(by_step)]


def losses(subject: Subject) -> Table:
    table = Table("losses", "Loss of each step")
    curves = {id(entry): curve(entry.run) for entry in subject.entries}
    for entry in subject.entries:
        other = reference(entry, subject)
        base = curves[id(other)]
        for step, loss in curves[id(entry)].items():
            known = other is not entry and step in base
            table.add(
                run=entry.name,
                step=step,
                loss=loss,
                reference=other.name if other is not entry else None,
                difference=loss - base[step] if known else None,
            )
    return table


def curve(run: Run) -> dict[int, float]:
    """The loss by step, where it is a number."""
    return {row["step"]: row["loss"] for row in all_steps(run) if numbers([row["loss"]])}


def reference(entry: Entry, subject: Subject) -> Entry:
    """The run whose loss curve that of `entry` should equal: single if there, else the first."""
    alike = [one for one in subject.entries if curve_key(one) == curve_key(entry)]
    with_steps = [one for one in alike if one.run.first_rank("step")] or [entry]
    return min(with_steps, key=lambda one: one.sync != "single")


def curve_key(entry: Entry) -> tuple[tuple[str, str], ...]:
    """The same for runs that should have one loss curve."""
    free = FREE - {"sync", "workers", "nodes"} if entry.sync in INEXACT else FREE
    return tuple(sorted((k, repr(v)) for k, v in entry.settings.items() if k not in free))


def first_losses(subject: Subject) -> Table:
    names = [f"loss_{step}" for step in range(1, 6)]
    columns = ["run", *names, "reference", "steps_compared", "largest_difference", "at_step"]
    table = Table("first_losses", "The first five losses, and the largest difference", columns)
    every = losses(subject)
    for label in every.unique("run"):
        rows = every.select(run=label)
        by_step = {row["step"]: row for row in rows}
        apart = [row for row in rows if row["difference"] is not None]
        worst = max(apart, key=lambda row: abs(row["difference"]), default=None)
        found = {f"loss_{k}": by_step[k]["loss"] for k in range(1, 6) if k in by_step}
        table.add(
            run=label,
            **found,
            reference=rows[0]["reference"],
            steps_compared=len(apart) or None,
            largest_difference=abs(worst["difference"]) if worst else None,
            at_step=worst["step"] if worst else None,
        )
    return table


def metrics(subject: Subject) -> Table:
    table = Table("metrics", "Metrics of each evaluation")
    for entry in subject.entries:
        for row in evaluations(entry.run):
            for metric, value in (row["metrics"] or {}).items():
                if numbers([value]):
                    at = {name: row[name] for name in ("epoch", "step")}
                    table.add(run=entry.name, **at, metric=metric, value=value)
    return table


def evaluation_seconds(subject: Subject) -> Table:
    table = Table("evaluation", "Seconds of an evaluation")
    for label, entries in cells(subject):
        rows = [row for entry in entries for row in evaluations(entry.run)]
        found = estimate(row["eval_s"] for row in rows)
        samples = mean_of(rows, "samples")
        if found:
            table.add(
                run=label,
                workers=entries[0].workers,
                evaluations=found.count,
                samples=samples,
                eval_s=found.mean,
                low_s=found.low,
                high_s=found.high,
                **{name: mean_of(rows, name) for name in ("predict_s", "metric_s", "sync_s")},
                samples_per_s=samples / found.mean if samples and found.mean else None,
            )
    return table


def cells(subject: Subject) -> list[tuple[str, list[Entry]]]:
    """Runs of the same settings together, as repeats."""
    found: dict[str, list[Entry]] = {}
    for entry in subject.entries:
        found.setdefault(entry.label, []).append(entry)
    return list(found.items())


def seconds(subject: Subject) -> Table:
    table = Table("seconds", "Seconds per iteration")
    for label, entries in cells(subject):
        per_run = [rows for entry in entries if (rows := timed(entry.run))]
        found = of_runs(per_run)
        if found is None:
            continue
        rows = [row for one in per_run for row in one]
        parts = {f"{phase}_s": mean_of(rows, f"{phase}_s") for phase in PHASES}
        known = numbers(parts.values())
        per_s = rate(rows)
        table.add(
            run=label,
            sync=entries[0].sync,
            workers=entries[0].workers,
            runs=len(per_run),
            steps=len(rows),
            mean_s=found.mean,
            median_s=found.median,
            spread_s=found.spread,
            low_s=found.low,
            high_s=found.high,
            **parts,
            other_s=max(0.0, found.mean - sum(known)) if len(known) == len(parts) else None,
            **shares(found.mean, communication(rows if entries[0].workers > 1 else [])),
            samples_per_s=per_s,
            samples_per_s_per_worker=per_s / entries[0].workers if per_s else None,
        )
    return table


def communication(rows: list[Row]) -> dict[str, float | None]:
    """Seconds hidden behind the backward pass, and seconds waited for, in it and after it.

    Both are None without rows, or with those of a version that did not record them.
    """
    comm, hidden, sync = (mean_of(rows, name) for name in ("comm_s", "overlapped_s", "sync_s"))
    if comm is None or hidden is None or sync is None:
        return {"overlapped_s": None, "exposed_s": None}
    return {"overlapped_s": hidden, "exposed_s": sync + max(0.0, comm - hidden)}


def shares(step_s: float, parts: dict[str, float | None]) -> dict[str, float | None]:
    """`parts`, with how much of a step is waited for, and how much of communication is hidden."""
    hidden, exposed = parts["overlapped_s"], parts["exposed_s"]
    waited = exposed / step_s if exposed is not None and step_s else None
    both = (hidden or 0.0) + (exposed or 0.0)
    return {
        **parts,
        "waited_share": waited,
        "hidden_share": (hidden or 0.0) / both if both else None,
    }


def of_runs(per_run: list[list[Row]]) -> Estimate | None:
    """Over the steps of one run; over the means of several."""
    if len(per_run) > 1:
        return estimate(mean_of(rows, "step_s") for rows in per_run)
    return estimate(row["step_s"] for rows in per_run for row in rows)


def mean_of(rows: Iterable[Row], name: str) -> float | None:
    """The mean of one column; None where no row has a number in it."""
    return mean(row[name] for row in rows)


def rate(rows: list[Row], count: str = "samples") -> float | None:
    """Samples per second over `rows`: those of all ranks, or another `count` of them."""
    known = [row for row in rows if len(numbers([row[count], row["step_s"]])) == 2]
    total_s = sum(row["step_s"] for row in known)
    return sum(row[count] for row in known) / total_s if total_s else None
