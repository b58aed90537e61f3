"""The beginning of a report: what ran on what, a row for each group of repeats, warnings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from train.report.data import event_tables, over_workers, scaling, tables
from train.report.data.columns import Entry
from train.report.data.reader import Row, mean, numbers
from train.report.data.scaling import DOUBTFUL
from train.report.data.subject import Subject
from train.report.data.tables import frame, records
from train.report.pages import provenance
from train.report.pages.drawing import duration, link_rate, with_interval

SAME_TOKENS = 1.02  # a ratio of tokens below it counts as the same work
MOST_NAMED = 3  # bases of speed-ups in a sentence


class Verdict(NamedTuple):
    """The first screen of a report; parts without records are empty."""

    ran: str
    table: pd.DataFrame
    base: str
    warnings: list[str]


def build(subject: Subject) -> Verdict:
    """The verdict on `subject`."""
    seconds, gains = records(tables.seconds(subject)), records(scaling.speedup(subject))
    bases = list(dict.fromkeys(row["base"] for row in gains))
    base = "; ".join(bases) if len(bases) <= MOST_NAMED else "the same work on the fewest workers"
    return Verdict(
        _ran(subject),
        _table(subject, seconds, gains),
        f"Speed-up and efficiency are relative to {base}." if bases else "",
        [*provenance.notes(subject), *_warnings(subject, seconds, gains)],
    )


def _warnings(subject: Subject, seconds: list[Row], gains: list[Row]) -> Iterator[str]:
    """Of what makes numbers less than they seem."""
    yield from _shared_cores(subject)
    # more likely their base was slowed
    over = [
        f"{row['efficiency']:.0%} of {row['run']} against {row['base']}"
        for row in [*gains, *_evaluation_gains(subject)]
        if row["efficiency"] > DOUBTFUL
    ]
    if over:
        text = f"An efficiency above {DOUBTFUL:.0%} is seldom real; its base was probably slowed: "
        yield text + ", ".join(over) + "."
    steps = {len(tables.all_steps(one.run)) for one in subject.entries} - {0}
    if len(steps) > 1:
        yield (
            f"Runs took from {min(steps)} to {max(steps)} steps: their last losses, metrics and "
            "MB are of other amounts of training. Losses are compared at the steps that both have."
        )
    yield from _unequal_tokens(subject)
    uneven = "; ".join(
        f"{row['run']} (mean {duration(row['mean_s'])}, median {duration(row['median_s'])})"
        for row in seconds
        if (row["spread_s"] or 0.0) > row["mean_s"] / 2
    )
    if uneven:
        yield f"Iterations differ widely in {uneven}: something else may have run."


def _table(subject: Subject, seconds: list[Row], gains: list[Row]) -> pd.DataFrame:
    """A row for each group of repeats, also for failed runs without seconds.

    For repeats, numbers are means.
    """
    of_steps, of_gains = ({row["run"]: row for row in rows} for rows in (seconds, gains))
    of_evaluation = {row["run"]: row for row in records(over_workers.evaluation(subject))}
    names, traffic = tables.main_metrics(subject), event_tables.traffic(subject)
    sent = event_tables.sent(event_tables.traffic_totals(traffic)) if len(traffic) else traffic
    rows = []
    for label, entries in tables.cells(subject):
        timed, gain = of_steps.get(label, {}), of_gains.get(label, {})
        row: Row = {"run": label, "state": ", ".join(dict.fromkeys(map(tables.state, entries)))}
        row["steps"] = mean(len(tables.all_steps(one.run)) or None for one in entries)
        row["seconds_per_step"] = _seconds(timed, "mean_s")
        row["samples_per_s"] = timed.get("samples_per_s")
        row |= {"speedup": gain.get("speedup"), "efficiency": gain.get("efficiency")}
        row["final_loss"] = mean(_last_loss(one) for one in entries)
        if not seconds:  # runs of an evaluation only
            made = of_evaluation.get(label, {})
            row["seconds_per_evaluation"] = _seconds(made, "eval_s")
            row["evaluated_samples_per_s"] = made.get("samples_per_s")
        row |= {name: mean(tables.last_metric(one, name) for one in entries) for name in names}
        row["losses"] = _equality(entries, subject)
        rows.append(row | dict(sent.reindex([one.name for one in entries]).mean()))
    table = frame(rows)
    if len(table) and set(table["state"]) == {"done"}:  # the first line says that about all of them
        table = table.drop(columns="state")
    return table if len(table) and table.drop(columns="run").notna().any(axis=None) else table[:0]


def _evaluation_gains(subject: Subject) -> list[Row]:
    """The speed-ups of evaluations, in the form of `scaling.speedup`."""
    return [
        {"run": f"the evaluation of {row['run']}", "base": f"its series on {row['base_workers']}"}
        | {"efficiency": row["speedup"] * row["base_workers"] / row["workers"]}
        for row in records(over_workers.evaluation(subject))
        if row["speedup"]
    ]


def _unequal_tokens(subject: Subject) -> Iterator[str]:
    """A warning if samples of one task have different numbers of tokens, mostly from padding."""
    found: dict[str, dict[float, str]] = {}
    for entry in subject.entries:
        rows = [row for row in entry.run.rows("step") if row["local_tokens"]]
        if samples := sum(row["local_samples"] for row in rows):
            tokens = sum(row["local_tokens"] for row in rows) / samples
            found.setdefault(str(entry.settings.get("task")), {})[tokens] = entry.name
    for task, of_task in found.items():
        low, high = min(of_task), max(of_task)
        if high > SAME_TOKENS * low:
            yield (
                f"A sample of {task} has {low:.1f} tokens in {of_task[low]} and {high:.1f} in "
                f"{of_task[high]}, padding included: their seconds are not of the same work."
            )


def _seconds(row: Row, column: str) -> str | None:
    return with_interval(row[column], row["low_s"], row["high_s"]) if row else None


def _last_loss(entry: Entry) -> float | None:
    losses = tables.curve(entry.run).dropna()
    return losses.iloc[-1] if len(losses) else None


def _equality(entries: list[Entry], subject: Subject) -> str | None:
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
            gaps.append((gap.max(), base.title or base.sync))
    if not gaps:
        others = [one for one in subject.entries if one not in entries]
        is_base = any(tables.reference(one, subject) in entries for one in others)
        return "reference" if is_base else None
    furthest, of = max(gaps)
    return "equal" if furthest == 0 else f"within {furthest:.1g} of {of}"


def _shared_cores(subject: Subject) -> Iterator[str]:
    """Of runs whose workers had less than a core each: speed-ups are then not those of nodes."""
    found: dict[str, dict[str, None]] = {}
    for entry in subject.entries:
        total = _cores(entry)
        if total and entry.workers > total and not entry.run.is_foreign:
            found.setdefault(f"{entry.workers} workers on {total:.0f}", {})[entry.label] = None
    each = "; ".join(
        f"{next(iter(labels)) if len(labels) == 1 else f'{len(labels)} rows'}: {text}"
        for text, labels in found.items()
    )
    if found:
        yield f"Workers share cores ({each})."


def _cores(entry: Entry) -> float:
    """The cores of all its workers together; 0: unknown."""
    cores = numbers(env.get("cores") for env in entry.run.environments.values())
    return sum(cores[:1] if provenance.is_simulated(entry) else cores)


def _ran(subject: Subject) -> str:
    """A sentence: the machine, how many of the runs are done, and of what."""
    entries, hosts = subject.entries, provenance.hosts(subject)
    kinds = "; ".join(dict.fromkeys(map(_kind, hosts)))
    where = f"on {len(hosts)} host{'' if len(hosts) == 1 else 's'} ({kinds})" if hosts else ""
    if hosts and all(map(provenance.is_simulated, entries)):
        nodes = max(int(one.settings["nodes"]) for one in entries)
        where = f"on one machine ({kinds})"
        where += f", which simulated up to {nodes} nodes" if nodes > 1 else ""
    workers = max((one.workers for one in entries), default=0)
    cores = max(map(_cores, entries), default=0)
    where += f", up to {workers} workers on {cores:.0f} cores" if workers > 1 and cores else ""
    done, total = sum(tables.state(one) == "done" for one in entries), len(entries)
    total = max(total, len(subject.cells))  # for a study also cells without a folder
    count = f"{done} of {total} runs done" if total > 1 or not done else "1 run, done"
    tasks = sorted({str(one.settings.get("task")) for one in entries} - {"None"})
    paths = filter(None, (one.run.config.get("data_dir") for one in entries))
    data = sorted({Path(str(path)).name for path in paths})
    rates = [link_rate(str(one.settings["rate"])) for one in entries if "rate" in one.settings]
    links = [f"links of {' and '.join(dict.fromkeys(rates))}"] if rates else []
    versions = [
        f"torch {row['version']}" for row in provenance.versions(subject) if row["name"] == "torch"
    ]
    ran = ", ".join([*filter(None, [where]), *links, *versions])
    what = f"{count}{' of ' + ', '.join(tasks) if tasks else ''}"
    what += f" (--data-dir {', '.join(data)})" if data else ""
    return f"Measured {ran}: {what}." if ran else f"{what}."


def _kind(host: Row) -> str:
    cores = f"{host['cores']} cores" if host["cores"] else None
    parts: list[Any] = [host["processor"], cores, host["memory"], host["GPUs"] or "no GPU"]
    return ", ".join(str(one) for one in parts if one)
