"""What the figures of a report show of each run, computed from its records alone."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from train.records.summary import PHASES
from train.report.data.reader import Row, Run
from train.report.data.statistics import Estimate, estimate, numbers
from train.report.data.subject import Entry, Subject

# What two runs may differ in and still have one loss curve.
FREE = frozenset(
    "sync workers nodes split bucket_mb threads data_workers timeout_s backend device"
    " save_model evaluate eval_batch_size checkpoint_every keep_last keep_best max_steps network"
    " join_timeout_s profile max_restarts stop_signal rate busy overlap sparse_rows"
    " length_balance pad compile".split()
)
INEXACT = frozenset({"local_sgd"})  # modes that have a curve of their own for every size
OVERLAPPED = frozenset({"ddp", "accelerate"})


@dataclass
class Table:
    """The data of one figure or table of the report, a row a mapping by column."""

    name: str
    title: str
    columns: list[str]
    rows: list[Row] = field(default_factory=list)

    def add(self, **row: Any) -> None:
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


def name_of(entry: Entry, subject: Subject) -> str:
    """The label, with the repeat where there are several of it."""
    alike = sum(one.label == entry.label for one in subject.entries)
    return f"{entry.label} #{entry.repeat + 1}" if alike > 1 else entry.label


def losses(subject: Subject) -> Table:
    columns = ["run", "step", "loss", "reference", "difference"]
    table = Table("losses", "Loss of each step", columns)
    curves = {id(entry): curve(entry.run) for entry in subject.entries}
    for entry in subject.entries:
        other = reference(entry, subject)
        base = curves[id(other)]
        for step, loss in curves[id(entry)].items():
            known = other is not entry and step in base
            table.add(
                run=name_of(entry, subject),
                step=step,
                loss=loss,
                reference=name_of(other, subject) if other is not entry else None,
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
    table = Table("metrics", "Metrics of each evaluation", "run epoch step metric value".split())
    for entry in subject.entries:
        for row in evaluations(entry.run):
            for metric, value in (row["metrics"] or {}).items():
                if numbers([value]):
                    label = name_of(entry, subject)
                    table.add(
                        run=label, epoch=row["epoch"], step=row["step"], metric=metric, value=value
                    )
    return table


def evaluation_seconds(subject: Subject) -> Table:
    parts = ("predict_s", "metric_s", "sync_s")
    columns = "run workers evaluations samples eval_s low_s high_s".split()
    columns += [*parts, "samples_per_s"]
    table = Table("evaluation", "Seconds of an evaluation", columns)
    for label, entries in cells(subject):
        rows = [row for entry in entries for row in evaluations(entry.run)]
        found = estimate(row["eval_s"] for row in rows)
        samples = estimate(row["samples"] for row in rows)
        if found:
            table.add(
                run=label,
                workers=entries[0].workers,
                evaluations=found.count,
                samples=samples.mean if samples else None,
                eval_s=found.mean,
                low_s=found.low,
                high_s=found.high,
                **{name: _mean(rows, name) for name in parts},
                samples_per_s=samples.mean / found.mean if samples and found.mean else None,
            )
    return table


def cells(subject: Subject) -> list[tuple[str, list[Entry]]]:
    """Runs of the same settings together, as repeats."""
    found: dict[str, list[Entry]] = {}
    for entry in subject.entries:
        found.setdefault(entry.label, []).append(entry)
    return list(found.items())


def seconds(subject: Subject) -> Table:
    phases = [f"{phase}_s" for phase in PHASES]
    columns = ["run", "sync", "workers", "runs", "steps", "mean_s", "median_s", "spread_s"]
    columns += ["low_s", "high_s", *phases, "other_s", "overlapped_s", "exposed_s"]
    columns += ["samples_per_s", "samples_per_s_per_worker"]
    table = Table("seconds", "Seconds per iteration", columns)
    for label, entries in cells(subject):
        per_run = [rows for entry in entries if (rows := timed(entry.run))]
        found = of_runs(per_run)
        if found is None:
            continue
        rows = [row for one in per_run for row in one]
        parts = {name: _mean(rows, name) for name in phases}
        known = numbers(parts.values())
        rate = _rate(rows)
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
            other_s=max(0.0, found.mean - sum(known)) if len(known) == len(phases) else None,
            **(communication(rows) if entries[0].workers > 1 else {}),
            samples_per_s=rate,
            samples_per_s_per_worker=rate / entries[0].workers if rate else None,
        )
    return table


def communication(rows: list[Row]) -> dict[str, float | None]:
    """Seconds hidden behind the backward pass, and seconds waited for, in it and after it."""
    comm, hidden, sync = (_mean(rows, name) for name in ("comm_s", "overlapped_s", "sync_s"))
    if comm is None or hidden is None or sync is None:  # records of an older version
        return {"overlapped_s": None, "exposed_s": None}
    return {"overlapped_s": hidden, "exposed_s": sync + max(0.0, comm - hidden)}


def of_runs(per_run: list[list[Row]]) -> Estimate | None:
    """Over the steps of one run; over the means of several."""
    means = [estimate(row["step_s"] for row in rows) for rows in per_run]
    found = [one.mean for one in means if one]
    if len(found) > 1:
        return estimate(found)
    return means[0] if means else None


def per_rank(subject: Subject) -> Table:
    """Each rank's part; what a rank does before it waits for others is its own work."""
    columns = "run rank steps local_samples own_work_s sync_s samples_per_s".split()
    table = Table("ranks", "What each rank does", columns)
    for entry in subject.entries:
        for rank, kinds in sorted(entry.run.ranks.items()):
            steps = kinds["step"][1:]
            step_s, local = _mean(steps, "step_s"), _mean(steps, "local_samples")
            if step_s and entry.workers > 1:
                table.add(
                    run=name_of(entry, subject),
                    rank=rank,
                    steps=len(steps),
                    local_samples=local,
                    own_work_s=own_work_s(steps, entry.sync),
                    sync_s=_mean(steps, "sync_s"),
                    samples_per_s=local / step_s if local is not None else None,
                )
    return table


def own_work_s(steps: list[Row], sync: str) -> float | None:
    """Mean seconds before a rank can wait for others: with overlap, the backward pass waits."""
    names = ["data_s", "forward_s"] + ([] if sync in OVERLAPPED else ["backward_s"])
    parts = [_mean(steps, name) for name in names]
    return sum(numbers(parts)) if len(numbers(parts)) == len(names) else None


def _mean(rows: Iterable[Row], name: str) -> float | None:
    found = estimate(row[name] for row in rows)
    return found.mean if found else None


def _rate(rows: list[Row]) -> float | None:
    known = [row for row in rows if len(numbers([row["samples"], row["step_s"]])) == 2]
    total_s = sum(row["step_s"] for row in known)
    return sum(row["samples"] for row in known) / total_s if total_s else None
