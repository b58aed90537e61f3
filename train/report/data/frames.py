"""The two pandas tables from which a report is made: a row for each run, a row for each step.

Their columns are described in train/report/data/columns.py. So a table of a report is a selection
of rows, a groupby over columns, and a mean or a sum: docs/report.md has an example. Each kind of
other events, such as evaluations, has a table similar to `steps`.

Seconds per iteration are those of the lowest rank on record, because all ranks end a step together,
in its collective. The first step of each attempt is left out, because it includes one-time costs.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from train.report.data.columns import BATCH, NAME_COLUMN, WORKERS, Entry, Roles, loss_reference
from train.report.data.reader import FIELDS, Row, mean, numbers

IDENTITY = ("run", "label", "series", "repeat", NAME_COLUMN)
# Columns that every table of `runs` has, even if it has no rows.
RUN_COLUMNS = [*IDENTITY, "task", "sync", WORKERS, "precision", "local_batch_size", *BATCH, "state"]
RUN_COLUMNS += ["epoch_samples", "total_s", "peak_memory_bytes", "peak_gpu_memory_bytes"]
KEYS = ("step", "epoch", "rank", "kind")  # fields of a step that are not quantities


def frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The rows as a table; unknown values stay None, and whole numbers stay whole."""
    return pd.DataFrame(list(rows), dtype=object)


def records(table: pd.DataFrame) -> list[Row]:
    """The rows of a table; unknown values are None."""
    rows: list[Row] = table.astype(object).where(table.notna(), None).to_dict("records")
    return rows


def mean_of_all(values: Iterable[float]) -> float:
    """The mean; NaN if one of `values` is unknown."""
    return statistics.fmean(values)


def add_up(values: Iterable[Any]) -> float | None:
    """The sum; None if one of `values` is not a number."""
    every = list(values)
    return sum(every) if len(numbers(every)) == len(every) else None


def _identity(entry: Entry) -> Row:
    """The columns that identify a run."""
    named = (entry.name, entry.label, entry.series, entry.repeat, entry.title or None)
    return dict(zip(IDENTITY, named, strict=True))


def records_of_kind(entries: Sequence[Entry], kind: str) -> pd.DataFrame:
    """A row for each record of this kind, by run, attempt and rank.

    `is_last` marks records of the last attempt, and `is_lead` records of the lowest rank that has
    any in its attempt.
    """
    flags = ["is_last", "is_lead"]
    columns = [*IDENTITY, *FIELDS[kind], "attempt", *flags]  # even without rows
    table = pd.DataFrame(list(_rows(entries, kind)), columns=columns, dtype=object)
    seconds = [name for name in FIELDS[kind] if name.endswith("_s")]
    return table.astype(dict.fromkeys(seconds, float) | dict.fromkeys(flags, bool))


def _rows(entries: Sequence[Entry], kind: str) -> Iterator[Row]:
    for entry in entries:
        for attempt, part in enumerate([*entry.run.attempts, entry.run], start=1):
            of_attempt = {"attempt": attempt, "is_last": part is entry.run}
            lead = part.lead(kind)
            for rank, kinds in part.ranks.items():
                own = _identity(entry) | of_attempt | {"is_lead": rank == lead}
                yield from (own | row for row in kinds[kind])


def last_attempt_records(
    entries: Sequence[Entry], kind: str, *, of_lead: bool = False
) -> pd.DataFrame:
    """The rows of the last attempt, from all ranks or only from the lead."""
    table = records_of_kind(entries, kind)
    return table[table["is_last"] & (table["is_lead"] | (not of_lead))]


def steps(entries: Sequence[Entry]) -> pd.DataFrame:
    """A row for each step of each rank and attempt, with the settings of the run.

    `is_timed` marks steps whose seconds count, which excludes the first step. `is_lead` marks steps
    of the lowest rank on record, whose seconds are those of the run. `is_kept` marks steps of that
    rank if no later attempt began at this step or before it, so that a run has each step once.
    """
    table = records_of_kind(entries, "step").rename(columns={"lr": "scheduled_lr"})
    quantities = [field for field in FIELDS["step"] if field not in KEYS and field in table]
    table = table.astype(dict.fromkeys([*quantities, "scheduled_lr"], float) | {"step": int})
    number = table.groupby(["run", "attempt", "rank"]).cumcount()
    table["is_timed"] = table["is_last"] & (number > 0) & table["step_s"].notna()
    from_the_end = table.loc[table["is_lead"], ["run", "step"]][::-1]
    least = from_the_end.groupby("run")["step"].cummin()
    least_after = least.groupby(from_the_end["run"]).shift()
    is_kept = ~(from_the_end["step"] >= least_after)
    table["is_kept"] = is_kept.reindex(table.index, fill_value=False)
    settings = pd.DataFrame([entry.settings for entry in entries], dtype=object)
    settings = settings.reindex(columns=list(dict.fromkeys([WORKERS, "task", *settings])))
    settings = settings.set_index(pd.Index([entry.name for entry in entries], dtype=object))
    return table.join(settings[settings.columns.difference(table.columns, sort=False)], on="run")


def evaluations(entries: Sequence[Entry]) -> pd.DataFrame:
    """A row for each evaluation, as the lowest rank recorded it; the latest attempt counts."""
    table = records_of_kind(entries, "eval").astype({"samples": float})
    last = table[table["is_lead"]].drop_duplicates(["run", "step"], keep="last")
    in_order = last.assign(at=pd.factorize(last["run"])[0]).sort_values(["at", "step"])
    return in_order.drop(columns="at").reset_index(drop=True)


def scores(evaluated: pd.DataFrame) -> pd.DataFrame:
    """A column for each metric of these evaluations; NaN where a value is not a number."""
    every = pd.DataFrame(
        [metrics or {} for metrics in evaluated["metrics"]], evaluated.index, dtype=object
    )
    return every.where(every.map(lambda value: bool(numbers([value]))))


def runs(
    entries: list[Entry], roles: Roles, steps: pd.DataFrame, evaluations: pd.DataFrame
) -> pd.DataFrame:
    """A row for each run: settings, how it ended, seconds, losses, the last metrics and bytes."""
    rows = [entry.settings | _identity(entry) | _file_columns(entry) for entry in entries]
    columns = dict.fromkeys(key for row in [*rows, dict.fromkeys(RUN_COLUMNS)] for key in row)
    table = pd.DataFrame(rows, columns=list(columns), dtype=object)
    table.index = pd.Index(table["run"], name=None)
    kept, timed = steps[steps["is_kept"]], steps[steps["is_timed"] & steps["is_lead"]]
    last = kept.drop_duplicates("run", keep="last").set_index("run")
    made = pd.DataFrame(index=table.index)
    made["steps"] = last["step"].astype(object)
    made["steps_taken"] = kept.groupby("run").size().astype(object)
    of_timed = timed.groupby("run")[["step_s", "samples"]].agg(mean)
    made["step_s"] = of_timed["step_s"]
    made["samples_per_s"] = of_timed["samples"] / of_timed["step_s"].replace(0, float("nan"))
    made["last_batch_loss"] = last["loss"]
    made["payload_bytes"] = kept.groupby("run")["payload_bytes"].agg(mean)  # of a step
    traffic = last_attempt_records(entries, "traffic")
    of_epochs = traffic[traffic["epoch"].astype(bool)].groupby("run")
    made["observed_sent_bytes"] = of_epochs["observed_sent_bytes"].agg(add_up)
    bases = [loss_reference(entry, entries, roles) for entry in entries]
    made["reference"] = [base.name if base else None for base in bases]
    ended = evaluations.drop_duplicates("run", keep="last").set_index("run")
    metrics = scores(ended)
    new = [name for name in metrics if name not in table and name not in made]
    table[WORKERS] = table[WORKERS].astype(int)
    return table.join(made.astype(object)).join(metrics[new])


def curves(steps: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The loss of each step, and its difference from the `wanted` loss, that of its reference.

    NaN where a loss is not a number.
    """
    table = steps.loc[steps["is_kept"], ["run", "series", NAME_COLUMN, "step", "loss"]]
    table["reference"] = table["run"].map(runs["reference"])
    table["wanted"] = loss_of(table["reference"], table)
    return table.assign(difference=table["loss"] - table["wanted"])


def loss_of(other: pd.Series, curve: pd.DataFrame) -> Any:
    """For each row of `curve`, the loss of the `other` run at the same step; NaN if unknown."""
    loss = curve.set_index(["run", "step"])["loss"]
    return loss.reindex(pd.MultiIndex.from_arrays([other, curve["step"]])).to_numpy()


def losses(curves: pd.DataFrame) -> pd.DataFrame:
    """`curves` without the steps whose loss is not a number."""
    return curves.dropna(subset="loss").drop(columns="wanted").astype(object)


def _file_columns(entry: Entry) -> Row:
    """Facts about a run from its files other than records."""
    run = entry.run
    row: Row = {"folder": run.name, "state": run.state, "is_foreign": run.is_foreign}
    row |= {"epoch_samples": run.summary.get("train_samples")}
    row |= {"total_s": run.summary.get("total_s")}
    for name in ("peak_memory_bytes", "peak_gpu_memory_bytes"):  # of the worker that used most
        row[name] = max(numbers(end.get(name) for end in run.exits), default=0) or None
    return row
