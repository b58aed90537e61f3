"""What a report says first: what ran on what, one row for each group of runs, the findings.

A finding is said only where it is measured: an order of speed where the 95 % intervals do not
overlap, equal losses where they were compared at every step that both runs have.
"""

from dataclasses import dataclass, field
from typing import Any

from train.report.data import event_tables, scaling, tables
from train.report.data.event_tables import add_up
from train.report.data.reader import Row
from train.report.data.subject import Entry, Subject
from train.report.data.tables import Table
from train.report.pages import provenance, sentences
from train.report.pages.units import with_interval

MOST_FINDINGS = 3
WORTH_SAYING = 0.1  # of a step: below it, synchronising is no finding
# Runs that differ in one of these do not do the same work in a step.
OTHER_WORK = frozenset({"task", "model", "batch_size", "accumulation", "max_seq_length"})


@dataclass
class Verdict:
    """The first screen of a report; parts for which there are no records are empty."""

    ran: str
    table: Table
    base: str = ""
    findings: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def build(subject: Subject) -> Verdict:
    """The verdict on `subject`."""
    seconds, speedup = tables.seconds(subject), scaling.speedup(subject)
    table = Table("verdict", "In short")
    for label, entries in tables.cells(subject):
        row = next(iter(seconds.select(run=label)), None)
        if row is not None:
            table.add(**_row(label, entries, row, speedup, subject))
    bases = speedup.unique("base") if any(row["ideal"] > 1 for row in speedup.rows) else []
    base = "Speed-up and efficiency are against " + "; ".join(bases) + "." if bases else ""
    said = [fastest(seconds.rows, subject), _waiting(seconds.rows), equal_losses(subject)]
    warnings = provenance.notes(subject) + sentences.doubts(speedup)
    return Verdict(
        _ran(subject), table, base, [one for one in said if one][:MOST_FINDINGS], warnings
    )


def _row(label: str, entries: list[Entry], row: Row, speedup: Table, subject: Subject) -> Row:
    gain = next(iter(speedup.select(run=label)), None)
    gain = gain if any(one["ideal"] > 1 for one in speedup.rows) else None
    first = entries[0]
    curve = tables.curve(first.run)
    return {
        "run": label,
        "seconds_per_step": with_interval(row["mean_s"], row["low_s"], row["high_s"]),
        "samples_per_s": row["samples_per_s"],
        "speedup": gain["speedup"] if gain else None,
        "efficiency": gain["efficiency"] if gain else None,
        "final_loss": curve[max(curve)] if curve else None,
        **_metric(first, subject),
        "losses": _equality(first, subject),
        **_traffic(first, subject),
    }


def _metric(entry: Entry, subject: Subject) -> Row:
    """The first metric of the last evaluation; the same one of every run."""
    known = [row["metrics"] for one in subject.entries for row in tables.evaluations(one.run)]
    name = next((name for one in known for name in one or {} if name != "eval_loss"), None)
    if name is None:
        return {}
    own = [row["metrics"] or {} for row in tables.evaluations(entry.run)]
    return {name: own[-1].get(name) if own else None}


def _equality(entry: Entry, subject: Subject) -> str | None:
    """How far its losses are from those of its reference."""
    base = tables.reference(entry, subject)
    if base is entry:
        return "reference" if _compared(entry, subject) else None
    gap = sentences.largest_gap(entry, base)
    if gap is None:
        return None
    return "equal" if gap == 0 else f"within {gap:.1g} of {base.sync}"


def _compared(entry: Entry, subject: Subject) -> bool:
    others = [one for one in subject.entries if one is not entry]
    return any(tables.reference(one, subject) is entry for one in others)


def _traffic(entry: Entry, subject: Subject) -> Row:
    """MB that all hosts of the run should have sent, and that their interfaces counted."""
    if not any(one.run.first_rank("traffic") for one in subject.entries):
        return {}
    rows = [
        row
        for row in event_tables.traffic(subject).select(run=entry.name)
        if row["epoch"] and row["direction"] == "sent"
    ]
    sums = {name: add_up(row[f"{name}_bytes"] for row in rows) for name in ("expected", "observed")}
    known = {name: value / 1e6 if value else None for name, value in sums.items()}
    return {"MB_expected": known["expected"], "MB_counted": known["observed"]}


def _ran(subject: Subject) -> str:
    """One line: how many runs of what, on which hosts."""
    tasks = sorted({str(one.settings.get("task")) for one in subject.entries} - {"None"})
    what = f"{len(subject.entries)} run{'s' if len(subject.entries) > 1 else ''}"
    what += f" of {', '.join(tasks)}" if tasks else ""
    hosts = provenance.hosts(subject)
    kinds = {_kind(host): None for host in hosts}
    where = f", on {len(hosts)} host{'s' if len(hosts) > 1 else ''}: {'; '.join(kinds)}"
    versions = [f"torch {row['version']}" for row in provenance.versions(subject)
                if row["name"] == "torch"]  # fmt: skip
    return ", ".join([what + (where if hosts else ""), *versions]) + "."


def _kind(host: Row) -> str:
    cores = f"{host['cores']} cores" if host["cores"] else None
    parts: list[Any] = [host["processor"], cores, host["memory"], host["GPUs"] or "no GPU"]
    return ", ".join(str(one) for one in parts if one)


def fastest(rows: list[Row], subject: Subject) -> str:
    """Which is the fastest, where that is more than chance."""
    rows = sorted((row for row in rows if row["mean_s"]), key=lambda row: row["mean_s"])
    if len(rows) < 2 or OTHER_WORK & set(subject.varying):
        return ""
    first, second = rows[:2]
    if None in (first["high_s"], second["low_s"]):
        return ""
    if first["high_s"] < second["low_s"]:
        return (
            f"{first['run']} is the fastest: {second['mean_s'] / first['mean_s']:.2f} times as "
            f"fast as {second['run']}, {rows[-1]['mean_s'] / first['mean_s']:.2f} times as fast "
            f"as {rows[-1]['run']}."
            if len(rows) > 2
            else f"{first['run']} is {second['mean_s'] / first['mean_s']:.2f} times as fast as "
            f"{second['run']}."
        )
    return (
        f"{first['run']} and {second['run']} are equally fast as far as was measured: their 95 % "
        "intervals overlap."
    )


def _waiting(rows: list[Row]) -> str:
    """Who waits longest for communication, of a step."""
    known = [row for row in rows if row["exposed_s"] and row["mean_s"] and row["workers"] > 1]
    if not known:
        return ""
    most = max(known, key=lambda row: row["exposed_s"] / row["mean_s"])
    share = most["exposed_s"] / most["mean_s"]
    if share < WORTH_SAYING:
        return f"No run waits more than {WORTH_SAYING:.0%} of a step for communication."
    return f"{most['run']} waits for communication during {share:.0%} of a step."


def equal_losses(subject: Subject) -> str:
    """Whether all runs have the losses of their reference."""
    gaps = [
        (gap, entry, base)
        for entry in subject.entries
        if (base := tables.reference(entry, subject)) is not entry
        and (gap := sentences.largest_gap(entry, base)) is not None
    ]
    if not gaps:
        return ""
    gap, entry, base = max(gaps, key=lambda one: one[0])
    if gap <= sentences.PARTED:
        return (
            f"All losses equal those of {base.label}, to {gap:.1g}."
            if gap
            else (f"All losses equal those of {base.label}, digit for digit.")
        )
    return f"The losses of {entry.name} differ from those of {base.name} by up to {gap:.2g}."
