"""The two tables of which a report is made, for pandas: a row for each run, and one for each step.

Their columns are those of train/report/data/columns.py. So a table of a report is a selection of
rows, a groupby over columns, and a mean or a sum: docs/report.md has an example. Evaluations and
other events have a table of each kind, as `steps`.

Seconds per iteration are those of the lowest rank on record: all ranks of a step end together, in
its collective. The first step of each attempt is left out, since it also pays for what happens
once.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from train.report.data.columns import BATCH, NAME_COLUMN, WORKERS, Entry, Roles, loss_reference
from train.report.data.reader import FIELDS, Row, mean, numbers

IDENTITY = ("run", "label", "series", "repeat", NAME_COLUMN)
# Columns of `runs` that every table has, also one without rows.
RUN_COLUMNS = [*IDENTITY, "task", "sync", WORKERS, "precision", "local_batch_size", *BATCH, "state"]
RUN_COLUMNS += ["epoch_samples", "total_s", "peak_memory_bytes", "peak_gpu_memory_bytes"]
KEYS = ("step", "epoch", "rank", "kind")  # fields of a step that are no quantities


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
    """The columns that say which run it is."""
    named = (entry.name, entry.label, entry.series, entry.repeat, entry.title or None)
    return dict(zip(IDENTITY, named, strict=True))


def records_of_kind(entries: Sequence[Entry], kind: str) -> pd.DataFrame:
    """A row for each record of this kind, by run, attempt and rank.

    `is_last`: it is of the last attempt. `is_lead`: it is of the lowest rank that recorded any in
    its attempt.
    """
    flags = ["is_last", "is_lead"]
    columns = [*IDENTITY, *FIELDS[kind], "attempt", *flags]  # also where there are no rows
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
    """The rows of the last attempt; those of all ranks, or of the lead alone."""
    table = records_of_kind(entries, kind)
    return table[table["is_last"] & (table["is_lead"] | (not of_lead))]


def steps(entries: Sequence[Entry]) -> pd.DataFrame:
    """A row for each step of each rank and attempt, with the settings of the run.

    `is_timed`: it is one of those whose seconds count, which are not those of the first step.
    `is_lead`: it is of the lowest rank on record, whose seconds are those of the run.
    `is_kept`: it is of that rank, and no later attempt began at this step or before it. So a run
    has each of its steps once.
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
    """A row for each evaluation, as the lowest rank recorded it; of attempts the latest counts."""
    table = records_of_kind(entries, "eval").astype({"samples": float})
    last = table[table["is_lead"]].drop_duplicates(["run", "step"], keep="last")
    in_order = last.assign(at=pd.factorize(last["run"])[0]).sort_values(["at", "step"])
    return in_order.drop(columns="at").reset_index(drop=True)


def scores(evaluated: pd.DataFrame) -> pd.DataFrame:
    """A column for each metric of these evaluations; NaN where one is no number."""
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
    """The loss of each step, and how far it is from the `wanted` one, which is its reference's.

    NaN where one is no number.
    """
    table = steps.loc[steps["is_kept"], ["run", "series", NAME_COLUMN, "step", "loss"]]
    table["reference"] = table["run"].map(runs["reference"])
    table["wanted"] = loss_of(table["reference"], table)
    return table.assign(difference=table["loss"] - table["wanted"])


def loss_of(other: pd.Series, curve: pd.DataFrame) -> Any:
    """For each row of `curve`, the loss of the `other` run at its step; NaN without one."""
    loss = curve.set_index(["run", "step"])["loss"]
    return loss.reindex(pd.MultiIndex.from_arrays([other, curve["step"]])).to_numpy()


def losses(curves: pd.DataFrame) -> pd.DataFrame:
    """`curves`, without the steps whose loss is no number."""
    return curves.dropna(subset="loss").drop(columns="wanted").astype(object)


def _file_columns(entry: Entry) -> Row:
    """What a run's files beside its records say of it."""
    run = entry.run
    row: Row = {"folder": run.name, "state": run.state, "is_foreign": run.is_foreign}
    row |= {"epoch_samples": run.summary.get("train_samples")}
    row |= {"total_s": run.summary.get("total_s")}
    for name in ("peak_memory_bytes", "peak_gpu_memory_bytes"):  # of the worker that had most
        row[name] = max(numbers(end.get(name) for end in run.exits), default=0) or None
    return row
