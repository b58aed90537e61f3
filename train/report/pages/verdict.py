"""The beginning of a report: what ran on what, a row for each group of repeats, warnings."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pandas as pd

from train.report.data import event_tables, over_workers, quantities, scaling, tables
from train.report.data.columns import Entry
from train.report.data.quantities import Unit
from train.report.data.reader import Row, mean
from train.report.data.subject import Subject
from train.report.data.tables import frame, records
from train.report.pages import head, provenance
from train.report.pages.drawing import duration, with_interval

SAME_TOKENS = 1.02  # a ratio of tokens below it counts as the same work
EVALUATED = "eval_loss"  # the metric that every task of the trainer has
# Columns of the first table that not all reports have.
ONLY_SOME = ("time_per_evaluation", "evaluated_samples_per_s", "last_batch_loss")
MOST_NAMED = 3  # bases of speed-ups in a sentence


class Warned(NamedTuple):
    """What makes numbers less than they seem, in a sentence, and the runs that it is about."""

    sentence: str
    details: list[str]


class Verdict(NamedTuple):
    """The first screen of a report; parts without records are empty."""

    facts: list[str]
    measured: str
    table: pd.DataFrame
    under: list[str]  # sentences under the table
    warnings: list[Warned]


def build(subject: Subject) -> Verdict:
    """The verdict on `subject`."""
    seconds = records(tables.seconds(subject))
    of_workers = scaling.speedup(subject)
    gains = records(quantities.believed(of_workers))
    of_evaluations = over_workers.evaluation(subject)
    doubts = quantities.doubts_of(of_workers) | quantities.doubts_of(of_evaluations)
    timed = {row["run"] for row in seconds}  # the others may only evaluate
    made = records(quantities.believed(of_evaluations))
    made = [row for row in made if row["run"] not in timed]
    known = (row["base"] for row in [*gains, *made] if row["speedup"] is not None)
    bases = list(dict.fromkeys(known))
    base = "; ".join(bases) if len(bases) <= MOST_NAMED else "the same work on the fewest workers"
    under = [f"Speed-up and efficiency are relative to {base}."] if bases else []
    table = _table(subject, seconds, [*gains, *made], made)
    if "losses" in table and table["losses"].notna().any():
        under.append(_on_losses(subject))
    notes = [Warned(note, []) for note in provenance.notes(subject)]
    warnings = [*notes, *_warnings(subject, seconds, doubts)]
    return Verdict(head.facts(subject), head.measured(subject), table, under, warnings)


def _warnings(subject: Subject, seconds: list[Row], doubts: dict[str, str]) -> Iterator[Warned]:
    yield from _shared_cores(subject)
    if doubts:
        text = "No speed-up is shown over a run that was probably slowed; data/ has the numbers."
        yield Warned(text, [f"{base}: {reason}" for base, reason in doubts.items()])
    steps = {len(tables.all_steps(one.run)) for one in subject.entries} - {0}
    if len(steps) > 1:
        text = f"Runs took from {min(steps)} to {max(steps)} steps; do not compare their last "
        more = "Losses are compared at the steps that both runs have."
        yield Warned(f"{text}losses, metrics and MB.", [more])
    yield from _unequal_tokens(subject)
    uneven = [
        f"{row['run']}: mean {duration(row['mean_s'])}, median {duration(row['median_s'])}"
        for row in seconds
        if quantities.is_uneven(row)
    ]
    if uneven:
        text = "Iterations of a run differ widely; other programs may have used the machine."
        yield Warned(text, uneven)


def _table(
    subject: Subject, seconds: list[Row], gains: list[Row], evaluations: list[Row]
) -> pd.DataFrame:
    """A row for each group of repeats, also for failed runs without seconds.

    For repeats, numbers are means. The answer is in the first columns, which a phone shows.
    """
    of_steps, of_gains, of_evaluations = (
        {row["run"]: row for row in rows} for rows in (seconds, gains, evaluations)
    )
    names, traffic = tables.main_metrics(subject), event_tables.traffic(subject)
    sent = event_tables.sent(event_tables.traffic_totals(traffic)) if len(traffic) else traffic
    bases = _bases(subject)
    unit, of_evaluation = _unit(seconds, "mean_s"), _unit(evaluations, "eval_s")
    rows = []
    for label, entries in tables.cells(subject):
        timed, gain, made = (one.get(label, {}) for one in (of_steps, of_gains, of_evaluations))
        row: Row = {"run": label, "state": ", ".join(dict.fromkeys(map(tables.state, entries)))}
        row["time_per_step"] = _seconds(timed, "mean_s", unit)
        row["time_per_evaluation"] = _seconds(made, "eval_s", of_evaluation)
        row["evaluated_samples_per_s"] = None if seconds else made.get("samples_per_s")
        row["speedup"] = gain.get("speedup")
        row["losses"] = _equality(entries, subject, is_base_named=len(bases) > 1)
        row |= {name: mean(tables.last_metric(one, name) for one in entries) for name in names}
        if EVALUATED not in names:
            row[EVALUATED] = mean(tables.last_metric(one, EVALUATED) for one in entries)
        row["last_batch_loss"] = mean(_last_loss(one) for one in entries)
        row["total_s"] = mean(one.run.summary.get("total_s") for one in entries)
        row |= {"samples_per_s": timed.get("samples_per_s"), "efficiency": gain.get("efficiency")}
        row["steps"] = mean(len(tables.all_steps(one.run)) or None for one in entries)
        rows.append(row | dict(sent.reindex([one.name for one in entries]).mean()))
    return _without_less(frame(rows).rename(columns={"MB_counted": "MB_sent"}))


def _without_less(table: pd.DataFrame) -> pd.DataFrame:
    """The first table without columns that another one makes needless."""

    def is_known(name: str) -> bool:
        return name in table and bool(table[name].notna().any())

    less = {"MB_sent": "MB_expected", "speedup": "samples_per_s", EVALUATED: "last_batch_loss"}
    gone = {of_less for name, of_less in less.items() if is_known(name)}
    gone |= {name for name in ONLY_SOME if not is_known(name)}
    table = table.drop(columns=[name for name in table if name in gone])
    if len(table) and set(table["state"]) == {"done"}:  # the first line says that about all of them
        table = table.drop(columns="state")
    return table if len(table) and table.drop(columns="run").notna().any(axis=None) else table[:0]


def _unequal_tokens(subject: Subject) -> Iterator[Warned]:
    """A warning if samples of one task have different numbers of tokens, mostly from padding.

    Those of the steps whose seconds are shown: not of the first ones.
    """
    found: dict[str, dict[float, str]] = {}
    for entry in subject.entries:
        steps = (row for kinds in entry.run.ranks.values() for row in kinds["step"][1:])
        rows = [row for row in steps if row["local_tokens"]]
        if samples := sum(row["local_samples"] for row in rows):
            tokens = sum(row["local_tokens"] for row in rows) / samples
            found.setdefault(str(entry.settings.get("task")), {})[tokens] = entry.name
    for task, of_task in found.items():
        low, high = min(of_task), max(of_task)
        if high > SAME_TOKENS * low:
            yield Warned(
                f"Samples of {task} have different numbers of tokens: seconds are not of the same "
                "work.",
                [
                    f"{size:.1f} tokens a sample, with padding: {of_task[size]}"
                    for size in (low, high)
                ],
            )


def _unit(rows: Iterable[Row], column: str) -> Unit:
    """That of these seconds and of their intervals, as in the section's table."""
    return quantities.unit_of_seconds(row[name] for row in rows for name in (column, "high_s"))


def _seconds(row: Row, column: str, unit: Unit) -> str | None:
    return with_interval(row[column], row["low_s"], row["high_s"], unit) if row else None


def _last_loss(entry: Entry) -> float | None:
    losses = tables.curve(entry.run).dropna()
    return losses.iloc[-1] if len(losses) else None


def _bases(subject: Subject) -> list[str]:
    """The labels of the runs with which losses are compared."""
    found = (tables.reference(one, subject) for one in subject.entries)
    return list(dict.fromkeys(one.label for one in found if one))


def _on_losses(subject: Subject) -> str:
    """What the column of losses says."""
    bases = _bases(subject)
    of = bases[0] if len(bases) == 1 else "a reference of the same work"
    return f"Losses are compared, step by step, with those of {of}; the largest difference counts."


def _equality(entries: list[Entry], subject: Subject, *, is_base_named: bool) -> str | None:
    """The difference of repeats' losses from those of their references: the largest counts."""
    gaps: list[tuple[float, str]] = []
    for entry in entries:
        base = tables.reference(entry, subject)
        if base is None:
            continue
        known, own = tables.curve(base.run).dropna(), tables.curve(entry.run)
        if known.index.isin(own.index[own.isna()]).any():
            return "not a number"
        if len(gap := tables.apart(base, entry)):
            name = base.title or base.sync
            gaps.append((gap.max(), "" if name == (entry.title or entry.sync) else name))
    if not gaps:
        others = [one for one in subject.entries if one not in entries]
        is_base = any(tables.reference(one, subject) in entries for one in others)
        return "reference" if is_base else None
    furthest, of = max(gaps)
    if furthest == 0:
        return "equal"
    return f"within {furthest:.1g}" + (f" of {of}" if is_base_named and of else "")


def _some(labels: Iterable[str], most: int = 4) -> str:
    every = list(labels)
    return " · ".join(every[:most]) + (f" and {len(every) - most} more" if every[most:] else "")


def _shared_cores(subject: Subject) -> Iterator[Warned]:
    """Of runs whose workers had less than a core each: speed-ups are then not those of nodes."""
    found: dict[str, dict[str, None]] = {}
    for entry in subject.entries:
        total = head.cores(entry)
        if total and entry.workers > total and not entry.run.is_foreign:
            shared = f"{entry.workers} workers on {head.several(int(total), 'core')}"
            found.setdefault(shared, {})[entry.label] = None
    if found:
        text = "Workers share cores; on machines of their own, speed-ups would be others."
        yield Warned(text, [f"{shared}: {_some(labels)}" for shared, labels in found.items()])
