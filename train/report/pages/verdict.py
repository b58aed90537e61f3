"""What a report says first: what ran on what, one row for each group of repeats, warnings."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from train.report.data import event_tables, scaling, tables
from train.report.data.reader import Row
from train.report.data.scaling import DOUBTFUL
from train.report.data.statistics import mean, numbers
from train.report.data.subject import Entry, Subject
from train.report.data.tables import add_up, frame, records
from train.report.pages import provenance
from train.report.pages.units import duration, link_rate, with_interval


@dataclass
class Verdict:
    """The first screen of a report; parts for which there are no records are empty."""

    ran: str
    table: pd.DataFrame
    base: str = ""
    warnings: list[str] = field(default_factory=list)


def build(subject: Subject) -> Verdict:
    """The verdict on `subject`."""
    seconds, gains = records(tables.seconds(subject)), records(scaling.speedup(subject))
    if not any(row["ideal"] > 1 for row in gains):
        gains = []
    bases = dict.fromkeys(row["base"] for row in gains)
    return Verdict(
        _ran(subject),
        _table(subject, seconds, gains),
        "Speed-up and efficiency are against " + "; ".join(bases) + "." if bases else "",
        [*provenance.notes(subject), *_shared_cores(subject), *_doubts(gains), *_uneven(seconds)],
    )


def _table(subject: Subject, seconds: list[Row], gains: list[Row]) -> pd.DataFrame:
    """A row for each group of repeats, those without seconds too: a run that failed is not hidden.

    Of repeats, numbers are means.
    """
    of_steps, of_gains = ({row["run"]: row for row in rows} for rows in (seconds, gains))
    of_evaluation = {row["run"]: row for row in records(tables.evaluation_seconds(subject))}
    names, traffic = tables.main_metrics(subject), event_tables.traffic(subject)
    rows = []
    for label, entries in tables.cells(subject):
        timed, gain = of_steps.get(label, {}), of_gains.get(label, {})
        row: Row = {"run": label, "state": ", ".join(dict.fromkeys(map(tables.state, entries)))}
        row["steps"] = mean(len(tables.all_steps(one.run)) or None for one in entries)
        row["seconds_per_step"] = _seconds(timed, "mean_s")
        row["samples_per_s"] = timed.get("samples_per_s")
        row |= {"speedup": gain.get("speedup"), "efficiency": gain.get("efficiency")}
        row["final_loss"] = mean(_last_loss(one) for one in entries)
        if not seconds:  # runs that were to evaluate only
            made = of_evaluation.get(label, {})
            row["seconds_per_evaluation"] = _seconds(made, "eval_s")
            row["evaluated_samples_per_s"] = made.get("samples_per_s")
        row |= {name: mean(tables.last_metric(one, name) for one in entries) for name in names}
        rows.append(row | {"losses": _equality(entries, subject)} | _traffic(entries, traffic))
    table = frame(rows)
    usual = {"state": {"done"}, "steps": set(table.get("steps", ())) if len(table) else set()}
    for name, values in usual.items():  # said only where it is not the same of all
        if len(table) and len(values) == 1 and set(table[name]) == values:
            table = table.drop(columns=name)
    return table if len(table) and table.drop(columns="run").notna().any(axis=None) else table[:0]


def _seconds(row: Row, column: str) -> str | None:
    return with_interval(row[column], row["low_s"], row["high_s"]) if row else None


def _last_loss(entry: Entry) -> float | None:
    curve = tables.curve(entry.run)
    return curve[max(curve)] if curve else None


def _equality(entries: list[Entry], subject: Subject) -> str | None:
    """How far the losses of repeats are from those of their references: the furthest counts."""
    gaps, sync = [], ""
    for entry in entries:
        base = tables.reference(entry, subject)
        if base is entry:
            continue
        known, own = tables.curve(base.run), tables.curve(entry.run)
        if any(
            row["step"] in known and row["step"] not in own for row in tables.all_steps(entry.run)
        ):
            return "not a number"
        if (gap := tables.largest_gap(entry, base)) is not None:
            gaps.append(gap[0])
            sync = base.title or base.sync
    if not gaps:
        others = [one for one in subject.entries if one not in entries]
        is_base = any(tables.reference(one, subject) in entries for one in others)
        return "reference" if is_base else None
    return "equal" if max(gaps) == 0 else f"within {max(gaps):.1g} of {sync}"


def _traffic(entries: list[Entry], table: pd.DataFrame) -> Row:
    """MB that all hosts of a run should have sent, and that their interfaces counted."""
    if not len(table):
        return {}
    sent = table[(table["direction"] == "sent") & table["epoch"].astype(bool)]
    of_runs = [sent[sent["run"] == entry.name] for entry in entries]
    found: Row = {}
    for name, column in (("MB_expected", "expected_bytes"), ("MB_counted", "observed_bytes")):
        totals = [add_up(rows[column]) for rows in of_runs if len(rows)]
        found[name] = mean(None if one is None else one / 1e6 for one in totals)
    return found


def _shared_cores(subject: Subject) -> list[str]:
    """Runs whose workers had less than a core each: speed-ups are then not those of nodes."""
    found = {}
    for entry in subject.entries:
        cores = numbers(env.get("cores") for env in entry.run.environments.values())
        total = sum(cores[:1] if provenance.is_simulated(entry) else cores)
        if total and entry.workers > total and not entry.run.is_foreign:
            found[entry.label] = f"{entry.workers} workers on {total:.0f}"
    shown = [f"{label}: {text}" for label, text in found.items()][:4]
    more = f", and {len(found) - len(shown)} more" if len(found) > len(shown) else ""
    return [f"Workers share cores ({'; '.join(shown)}{more})."] if found else []


def _doubts(gains: list[Row]) -> list[str]:
    """A warning of efficiencies that can hardly be: their base was slowed, more likely."""
    over = [
        f"{row['efficiency']:.0%} of {row['run']} against {row['base']}"
        for row in gains
        if row["efficiency"] > DOUBTFUL
    ]
    text = f"An efficiency above {DOUBTFUL:.0%} is seldom real, its base was slowed more likely: "
    return [text + ", ".join(over) + "."] if over else []


def _uneven(seconds: list[Row]) -> list[str]:
    uneven = [row for row in seconds if (row["spread_s"] or 0.0) > row["mean_s"] / 2]
    each = "; ".join(
        f"{row['run']} (mean {duration(row['mean_s'])}, median {duration(row['median_s'])})"
        for row in uneven
    )
    return [f"Iterations differ widely in {each}: something else may have run."] if each else []


def _ran(subject: Subject) -> str:
    """One line: how many runs of what, on which hosts."""
    tasks = sorted({str(one.settings.get("task")) for one in subject.entries} - {"None"})
    what = f"{len(subject.entries)} run{'' if len(subject.entries) == 1 else 's'}"
    what += f" of {', '.join(tasks)}" if tasks else ""
    hosts = provenance.hosts(subject)
    kinds = dict.fromkeys(map(_kind, hosts))
    where = f", on {len(hosts)} host{'' if len(hosts) == 1 else 's'}: {'; '.join(kinds)}"
    if hosts and all(map(provenance.is_simulated, subject.entries)):
        where = f", on nodes that one machine simulated: {'; '.join(kinds)}"
    rates = [
        link_rate(str(one.settings["rate"])) for one in subject.entries if "rate" in one.settings
    ]
    links = [f"links of {' and '.join(dict.fromkeys(rates))}"] if rates else []
    versions = [
        f"torch {row['version']}" for row in provenance.versions(subject) if row["name"] == "torch"
    ]
    return ", ".join([what + (where if hosts else ""), *links, *versions]) + "."


def _kind(host: Row) -> str:
    cores = f"{host['cores']} cores" if host["cores"] else None
    parts: list[Any] = [host["processor"], cores, host["memory"], host["GPUs"] or "no GPU"]
    return ", ".join(str(one) for one in parts if one)
