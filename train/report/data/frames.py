"""The two tables of which a report is made, for pandas: a row for each run, and one for each step.

Their columns are those of train/report/data/columns.py. So a table of a report is a selection of
rows, a groupby over columns, and a mean or a sum: docs/report.md has an example.
"""

import pandas as pd

from train.report.data import tables
from train.report.data.columns import NAME, Entry
from train.report.data.reader import Row, mean, numbers
from train.report.data.subject import Subject

# Columns of `runs` that "What was run" has of any run, before the settings in which runs differ.
MAIN = "run folder state task sync workers nodes batch_size precision seed steps".split()


def runs(subject: Subject) -> pd.DataFrame:
    """A row for each run: settings, how it ended, seconds, losses, the last metrics and bytes."""
    return tables.frame(_run_row(entry, subject) for entry in subject.entries)


def _run_row(entry: Entry, subject: Subject) -> Row:
    steps = tables.all_steps(entry.run)
    timed = tables.timed(entry.run)
    evaluations = tables.evaluations(entry.run)
    row: Row = {**entry.settings, **identity(entry)}
    row |= {"folder": entry.run.name, "state": tables.state(entry)}
    row |= {"steps": steps[-1]["step"] if steps else None}
    row["step_s"] = tables.mean_of(timed, "step_s")
    samples = tables.mean_of(timed, "samples")
    row["samples_per_s"] = samples / row["step_s"] if samples and row["step_s"] else None
    row["last_batch_loss"] = steps[-1]["loss"] if steps else None
    base = tables.reference(entry, subject)
    gaps = tables.apart(base, entry)
    row |= {"reference": base.name if base else None}
    row["largest_difference"] = gaps.max() if len(gaps) else None
    row["payload_bytes"] = mean(one["payload_bytes"] for one in steps)  # of a step
    row["observed_sent_bytes"] = tables.add_up(
        one["observed_sent_bytes"] for one in entry.run.rows("traffic") if one["epoch"]
    )
    ends = entry.run.exits
    peaks = numbers(end.get("peak_memory_bytes") for end in ends)
    row["peak_memory_bytes"] = max(peaks, default=0) or None  # older versions wrote 0
    metrics = evaluations[-1]["metrics"] if evaluations else None
    return row | {name: value for name, value in (metrics or {}).items() if name not in row}


def identity(entry: Entry) -> Row:
    """The columns that say which run it is."""
    return {
        "run": entry.name, "label": entry.label, "series": entry.series,
        "repeat": entry.repeat, NAME: entry.title or None,
    }  # fmt: skip


def steps(subject: Subject) -> pd.DataFrame:
    """A row for each run, rank and step of its last attempt, with the settings of the run.

    `is_timed`: it is one of those whose seconds count, which are not those of the first step.
    `is_lead`: it is of the lowest rank on record, whose seconds are those of the run.
    """
    rows = []
    for entry in subject.entries:
        of_run = {**entry.settings, **identity(entry)}
        lead = next((rank for rank, kinds in entry.run.ranks.items() if kinds["step"]), None)
        for rank, kinds in entry.run.ranks.items():
            for number, row in enumerate(kinds["step"]):
                is_timed = number > 0 and bool(numbers([row["step_s"]]))
                rows.append(of_run | row | {"is_timed": is_timed, "is_lead": rank == lead})
    return tables.frame(rows).infer_objects()


def overview(subject: Subject) -> pd.DataFrame:
    """Of each run its main settings, those in which runs differ, and how it ended."""
    wanted = [*MAIN, *subject.varying, "last_batch_loss"]
    return runs(subject).reindex(columns=list(dict.fromkeys(wanted)))
