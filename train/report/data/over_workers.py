"""How time, throughput and memory depend on the number of workers: a row for each group of repeats.

Seconds of an epoch are those of all its samples at the rate of the timed steps: the first step of a
run, which includes one-time costs, counts as the mean of the others.
"""

import math
from collections.abc import Iterator

import pandas as pd

from train.report.data import quantities, scaling, tables
from train.report.data.columns import Entry, selected
from train.report.data.reader import Row, mean, numbers
from train.report.data.subject import Subject
from train.report.data.tables import as_table, frame, records


def training(subject: Subject) -> pd.DataFrame:
    """Accuracy, seconds and speed-up by workers and by each worker's batch.

    If no run on fewer workers had the same batch, the base is a run with another one; `base`
    says which run it was. A run that is its own base gains nothing.
    """
    table = frame(_training(subject))
    if not len(table):
        return table
    table = quantities.with_doubts(table, records(tables.seconds(subject)))
    return table.drop(columns=["ideal", "efficiency"], errors="ignore")


def _training(subject: Subject) -> Iterator[Row]:
    known = tables.seconds(subject).to_dict("records")
    rates = {row["run"]: row["samples_per_s"] for row in known if row["samples_per_s"]}
    gains = {row["run"]: row for row in scaling.speedup(subject).to_dict("records")}
    cells = dict(tables.cells(subject))
    bases = {
        one.label: base
        for base, alike in scaling.same_work(subject, rates, of_any_size=True)
        for one in alike
    }
    names = tables.main_metrics(subject)
    for label, rate in rates.items():
        entries, first, base = cells[label], cells[label][0], bases[label]
        row: Row = {"series": first.series, "run": label, **_x(first, subject)}
        row |= {"workers": first.workers, "precision": first.settings.get("precision")}
        row |= {"batch_of_each": first.settings["batch_of_each"]}
        row |= {name: mean(tables.last_metric(one, name) for one in entries) for name in names}
        steps = [row for one in entries for row in tables.all_steps(one.run)]
        samples = mean(entry.run.summary.get("train_samples") for entry in entries)  # in one epoch
        trained = tables.add_up(row["samples"] for row in steps)
        row |= {"steps": len(steps) / len(entries), "epoch_s": samples / rate if samples else None}
        row["train_s"] = trained / len(entries) / rate if trained else None
        row |= {"samples_per_s": rate, "samples_per_s_per_worker": rate / first.workers}
        nearer = gains.get(label)  # of the same batch
        if nearer and nearer["base_workers"] <= base.workers:
            base = cells[nearer["base"]][0]
        elif first.workers <= base.workers:
            base = first  # no run has fewer
        gain = quantities.gain(rate, first.workers, rates[base.label], base.workers)
        yield row | (quantities.NO_GAIN if base is first else gain) | {"base": base.label}


def evaluation(subject: Subject) -> pd.DataFrame:
    """Seconds of evaluations and their parts, and the speed-up.

    It is one over the study's reference; without one, over the fewest workers of the series.
    """
    rows: list[Row] = []
    firsts: list[Entry] = []
    estimates: list[Row] = []
    for label, entries in tables.cells(subject):
        every = [row for entry in entries for row in tables.evaluations(entry.run)]
        if found := quantities.estimate(row["eval_s"] for row in every):
            parts = ("samples", "predict_s", "metric_s", "sync_s")
            means = {name: tables.mean_of_runs([every], name) for name in parts}
            row: Row = {"run": label, **_x(entries[0], subject), "workers": entries[0].workers}
            row["evaluations"] = len(numbers(one["eval_s"] for one in every))
            row |= {"samples": means["samples"], "eval_s": found["mean_s"]}
            rows.append(row | {name: found[name] for name in ("low_s", "high_s")} | means)
            firsts.append(entries[0])
            estimates.append({"run": label} | found)
    table = tables.frame(rows)
    if not rows:
        return table
    rates = table["samples"].astype(float) / table["eval_s"].astype(float).replace(0, math.nan)
    table["samples_per_s"] = rates
    table["series"] = [one.series for one in firsts]
    table["samples_per_s_per_worker"] = rates / table["workers"].astype(float)
    if chosen := selected(firsts, subject.roles):
        rate_of = dict(zip(table["run"], rates, strict=True))
        base_of_series = dict.fromkeys(table["series"], scaling.base_of(chosen, rate_of).label)
    else:
        in_order = table.sort_values(["workers", "samples_per_s"], ascending=[True, False])
        base_of_series = dict(in_order.drop_duplicates("series")[["series", "run"]].to_numpy())
    bases = table.set_index("run", drop=False).loc[table["series"].map(base_of_series)]
    table["base_workers"] = bases["workers"].to_numpy()
    table["base"] = bases["run"].to_numpy()
    gains = (rates / bases["samples_per_s"].to_numpy()).where(table["run"] != table["base"])
    ideal = table["workers"].astype(float) / table["base_workers"].astype(float)
    table = table.assign(speedup=gains, efficiency=gains / ideal)
    return quantities.with_doubts(table, estimates)


@as_table
def memory(subject: Subject) -> Iterator[Row]:
    """The most memory that one worker of each run used: of the machine, and of its GPU."""
    for label, entries in tables.cells(subject):
        ends = [end for entry in entries for end in entry.run.exits]
        first = entries[0].settings
        row: Row = {"run": label, "workers": entries[0].workers, "precision": first["precision"]}
        for name in ("peak_memory_bytes", "peak_gpu_memory_bytes"):
            row[name] = max(numbers(end.get(name) for end in ends), default=0) or None
        if row["peak_memory_bytes"]:
            yield row


def _x(entry: Entry, subject: Subject) -> Row:
    """The column along which figures are drawn."""
    return {subject.roles.x: entry.value(subject.roles.x)}


def has_points(table: pd.DataFrame, x: str) -> bool:
    """Whether a series of `table` has several values of the column x, which are numbers."""
    if not len(table) or len(numbers(table[x])) < len(table):
        return False
    return bool((table.groupby("series")[x].nunique() > 1).any())
