"""The beginning of a report: what ran where, a row for each group of repeats, and warnings."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pandas as pd

from train.report.data import event_tables, over_workers, quantities, scaling, tables
from train.report.data.columns import NAME_COLUMN
from train.report.data.frames import records
from train.report.data.reader import mean
from train.report.data.subject import Subject
from train.report.pages import drawing, head, provenance
from train.report.pages.drawing import with_intervals

SAME_TOKENS = 1.02  # a ratio of tokens below it counts as the same work
EVALUATED = "eval_loss"  # the metric that every task of the trainer has
# Columns of the first table that not all reports have.
ONLY_SOME = ("time_per_evaluation", "evaluated_samples_per_s", "last_batch_loss")
MOST_NAMED = 3  # bases of speed-ups in a sentence


class Warned(NamedTuple):
    """A sentence on why numbers mean less than they seem to, and details on the runs concerned."""

    sentence: str
    details: list[str]


class Verdict(NamedTuple):
    """The first screen of a report; parts without records are empty."""

    facts: list[str]
    measured: str
    table: pd.DataFrame
    under: list[str]  # sentences under the table
    warnings: list[Warned]
    remarks: list[str]


def build(subject: Subject) -> Verdict:
    """Build the verdict on `subject`."""
    seconds, of_workers = tables.seconds(subject), scaling.speedup(subject)
    of_evaluations = over_workers.evaluation(subject)
    doubts = quantities.doubts_of(of_workers) | quantities.doubts_of(of_evaluations)
    only_evaluated = ~of_evaluations["run"].isin(seconds["run"])
    made = quantities.without_doubted(of_evaluations[only_evaluated])
    gains = pd.concat([quantities.without_doubted(of_workers), made])
    bases = gains.loc[gains["speedup"].notna(), "base"].unique()
    base = "; ".join(bases) if len(bases) <= MOST_NAMED else "the same work on the fewest workers"
    under = [f"Speed-up and efficiency are relative to {base}."] if len(bases) else []
    table = _table(subject, seconds, gains, made)
    if "losses" in table and table["losses"].notna().any():
        under.append(_on_losses(subject))
    notes = [Warned(note, []) for note in provenance.notes(subject)]
    warnings = [*notes, *_warnings(subject, seconds, doubts)]
    remarks = provenance.remarks(subject)
    return Verdict(head.facts(subject), head.measured(subject), table, under, warnings, remarks)


def _warnings(subject: Subject, seconds: pd.DataFrame, doubts: dict[str, str]) -> Iterator[Warned]:
    yield from _shared_cores(subject)
    if doubts:
        text = (
            "Speed-ups over a run that was probably slowed down are not shown; the numbers are "
            "in data/."
        )
        yield Warned(text, [f"{base}: {reason}" for base, reason in doubts.items()])
    steps = subject.runs["steps_taken"].dropna()
    if steps.nunique() > 1:
        text = (
            f"Runs have between {steps.min()} and {steps.max()} steps, so do not compare their "
            "final "
        )
        more = "Losses are compared only at steps that both runs have."
        yield Warned(f"{text}losses, metrics and MB.", [more])
    yield from _unequal_tokens(subject)
    uneven = seconds[[quantities.is_uneven(row) for row in records(seconds)]]
    if len(uneven):
        text = (
            "The step times of a run vary widely; other programs may have been using the machine."
        )
        unit = quantities.unit_of_seconds([*seconds["mean_s"], *seconds["high_s"]])
        both = pd.concat([uneven["mean_s"], uneven["median_s"]]) / unit.size
        shown = drawing.column(both, is_time=True)
        pairs = zip(uneven["run"], shown[: len(uneven)], shown[len(uneven) :], strict=True)
        name = unit.name
        yield Warned(
            text,
            [f"{run}: mean {mean} {name}, median {median} {name}" for run, mean, median in pairs],
        )


def _table(
    subject: Subject, seconds: pd.DataFrame, gains: pd.DataFrame, evaluations: pd.DataFrame
) -> pd.DataFrame:
    """A row for each label, including failed runs without seconds.

    Numbers of repeats are means. The answer is in the first columns, which fit on a phone.
    """
    seconds, gains, evaluations = (one.set_index("run") for one in (seconds, gains, evaluations))
    of_labels = subject.runs.groupby("label", sort=False)
    states = of_labels["state"].agg(lambda every: ", ".join(dict.fromkeys(every)))
    table = pd.DataFrame({"state": states}, dtype=object)
    table["time_per_step"] = _times(seconds, "mean_s")
    table["time_per_evaluation"] = _times(evaluations, "eval_s")
    table["evaluated_samples_per_s"] = None if len(seconds) else evaluations["samples_per_s"]
    table["speedup"] = gains["speedup"]
    table["losses"] = _equality(subject)
    metrics, names = tables.last_metrics(subject), tables.main_metrics(subject)
    names = list(dict.fromkeys([*names, EVALUATED]))
    table = table.join(metrics.reindex(columns=names))
    kept = subject.steps[subject.steps["is_kept"]].groupby(["label", "run"])
    table["last_batch_loss"] = kept["loss"].last().groupby("label").agg(mean)
    table["total_s"] = of_labels["total_s"].agg(mean)
    table["samples_per_s"], table["efficiency"] = seconds["samples_per_s"], gains["efficiency"]
    table["steps"] = of_labels["steps_taken"].agg(mean)
    traffic = event_tables.traffic_totals(event_tables.traffic(subject))
    sent = event_tables.sent(traffic).groupby(subject.runs["label"])
    table = table.join(sent.agg(mean).rename(columns={"MB_counted": "MB_sent"}))
    return _without_less(table.rename_axis("run").reset_index().astype(object))


def _without_less(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first table without columns that another column makes unnecessary."""

    def is_known(name: str) -> bool:
        return name in table and bool(table[name].notna().any())

    less = {"MB_sent": "MB_expected", "speedup": "samples_per_s", EVALUATED: "last_batch_loss"}
    gone = {of_less for name, of_less in less.items() if is_known(name)}
    gone |= {name for name in ONLY_SOME if not is_known(name)}
    table = table.drop(columns=[name for name in table if name in gone])
    if len(table) and set(table["state"]) == {"done"}:  # the report's first line says so
        table = table.drop(columns="state")
    return table if len(table) and table.drop(columns="run").notna().any(axis=None) else table[:0]


def _unequal_tokens(subject: Subject) -> Iterator[Warned]:
    """Warn if the samples of a task differ in their number of tokens, mostly because of padding.

    Only samples of the steps whose seconds are shown count.
    """
    steps = subject.steps[subject.steps["is_timed"] & (subject.steps["local_tokens"] > 0)]
    of_runs = steps.groupby(["task", "run"], sort=False, dropna=False)
    sums = of_runs[["local_tokens", "local_samples"]].sum()
    size = sums["local_tokens"] / sums["local_samples"].where(sums["local_samples"] > 0)
    for task, of_task in size.groupby("task", sort=False, dropna=False):
        if of_task.max() > SAME_TOKENS * of_task.min():
            yield Warned(
                f"The runs of {task} have samples of different lengths, so their times are not "
                "for the same work.",
                [
                    f"{of_task[at]:.1f} tokens per sample, with padding: {at[1]}"
                    for at in (of_task.idxmin(), of_task.idxmax())
                ],
            )


def _times(table: pd.DataFrame, column: str) -> pd.Series:
    """The seconds in `column` with their intervals, as text in the unit of the section's table."""
    unit = quantities.unit_of_seconds([*table[column], *table["high_s"]])
    texts = with_intervals(table[column], table["low_s"], table["high_s"], unit)
    return pd.Series(texts, index=table.index, dtype=object)


def _bases(subject: Subject) -> list[str]:
    """The labels of the runs with which losses are compared."""
    return list(subject.runs["label"].reindex(subject.runs["reference"].dropna()).unique())


def _on_losses(subject: Subject) -> str:
    """A sentence that explains the column of losses."""
    bases = _bases(subject)
    of = bases[0] if len(bases) == 1 else "the reference for the same work"
    return f"Losses are compared step by step with {of}; the largest difference is shown."


def _equality(subject: Subject) -> pd.Series:
    """For each label, the largest difference of its losses from those of their references."""
    curve, runs = subject.curves, subject.runs[["label", "reference"]]
    broken = curve.loc[curve["loss"].isna() & curve["wanted"].notna(), "run"]
    short = subject.runs[NAME_COLUMN].fillna(subject.runs["sync"]).fillna("?")
    base = short.reindex(runs["reference"]).set_axis(runs.index)
    runs = runs.assign(
        furthest=curve["difference"].abs().groupby(curve["run"]).max(),
        of="" if len(_bases(subject)) < 2 else base.where(base != short, ""),
    )
    found: dict[Any, str] = {}
    for label, own in runs.groupby("label", sort=False):
        known = own.dropna(subset="furthest").sort_values(["furthest", "of"])
        others = runs.loc[runs["label"] != label, "reference"]
        if own.index.isin(broken).any():
            found[label] = "not a number"
        elif not len(known):
            found |= {label: "reference"} if others.isin(own.index).any() else {}
        elif known["furthest"].iloc[-1] == 0:
            found[label] = "equal"
        else:
            furthest, of = known[["furthest", "of"]].iloc[-1]
            found[label] = f"within {furthest:.1g}" + (f" of {of}" if of else "")
    return pd.Series(found, dtype=object)


def _some(labels: Iterable[str], most: int = 4) -> str:
    every = list(labels)
    return " · ".join(every[:most]) + (f" and {len(every) - most} more" if every[most:] else "")


def _shared_cores(subject: Subject) -> Iterator[Warned]:
    """Warn of workers with less than a core each: these speed-ups are not those of nodes."""
    found: dict[str, dict[str, None]] = {}
    for entry in subject.entries:
        total = head.cores(entry)
        if total and entry.workers > total and not entry.run.is_foreign:
            shared = f"{entry.workers} workers on {head.several(int(total), 'core')}"
            found.setdefault(shared, {})[entry.label] = None
    if found:
        text = "Workers share cores; on separate machines, speed-ups would differ."
        yield Warned(text, [f"{shared}: {_some(labels)}" for shared, labels in found.items()])
