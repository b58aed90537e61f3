"""What a report says first: what ran on what, one row for each group of repeats, the findings."""

from dataclasses import dataclass, field
from typing import Any

from train.report.data import event_tables, scaling, tables
from train.report.data.event_tables import add_up
from train.report.data.reader import Row
from train.report.data.statistics import mean
from train.report.data.subject import Entry, Subject
from train.report.data.tables import Table
from train.report.pages import conclusions, provenance, sentences
from train.report.pages.units import link_rate, with_interval

MOST_FINDINGS = 3


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
    is_wider = any(row["ideal"] > 1 for row in speedup.rows)
    gains = speedup if is_wider else Table("speedup", "")
    bases = gains.unique("base")
    said = [
        conclusions.fastest(seconds.rows, subject),
        conclusions.waiting(seconds.rows),
        conclusions.equal_losses(subject),
    ]
    return Verdict(
        _ran(subject),
        _table(subject, seconds, gains),
        "Speed-up and efficiency are against " + "; ".join(bases) + "." if bases else "",
        [one for one in said if one][:MOST_FINDINGS],
        provenance.notes(subject) + sentences.doubts(speedup),
    )


def _table(subject: Subject, seconds: Table, speedup: Table) -> Table:
    """A row for each group of repeats, those without seconds too: a run that failed is not hidden.

    Of repeats, numbers are means.
    """
    rows = []
    evaluations = tables.evaluation_seconds(subject)
    metric = _metric_name(subject)
    for label, entries in tables.cells(subject):
        of_steps = next(iter(seconds.select(run=label)), {})
        gain = next(iter(speedup.select(run=label)), {})
        row = {
            "run": label,
            "state": _state(entries),
            "seconds_per_step": _seconds(of_steps, "mean_s"),
            "samples_per_s": of_steps.get("samples_per_s"),
            "speedup": gain.get("speedup"),
            "efficiency": gain.get("efficiency"),
            "final_loss": mean(_last_loss(one) for one in entries),
        }
        if not seconds.rows:  # runs that were to evaluate only
            made = next(iter(evaluations.select(run=label)), {})
            row["seconds_per_evaluation"] = _seconds(made, "eval_s")
            row["evaluated_samples_per_s"] = made.get("samples_per_s")
        if metric:
            row[metric] = mean(_last_metric(one, metric) for one in entries)
        row["losses"] = conclusions.equality(entries, subject)
        rows.append({**row, **_traffic(entries, subject)})
    table = Table("verdict", "In short")
    if not any(row["state"] != "done" for row in rows):
        rows = [{key: value for key, value in row.items() if key != "state"} for row in rows]
    if any(value is not None for row in rows for key, value in row.items() if key != "run"):
        for row in rows:
            table.add(**row)
    return table


def _seconds(row: Row, column: str) -> str | None:
    return with_interval(row[column], row["low_s"], row["high_s"]) if row else None


def _state(entries: list[Entry]) -> str:
    return ", ".join(dict.fromkeys(event_tables.state(one) for one in entries))


def _last_loss(entry: Entry) -> float | None:
    curve = tables.curve(entry.run)
    return curve[max(curve)] if curve else None


def _metric_name(subject: Subject) -> str | None:
    """The first metric of all, or else the loss of evaluations: the same of every run."""
    known = [row["metrics"] for one in subject.entries for row in tables.evaluations(one.run)]
    names = [name for one in known for name in one or {}]
    return next((name for name in names if name != "eval_loss"), next(iter(names), None))


def _last_metric(entry: Entry, name: str) -> Any:
    rows = tables.evaluations(entry.run)
    return (rows[-1]["metrics"] or {}).get(name) if rows else None


def _traffic(entries: list[Entry], subject: Subject) -> Row:
    """MB that all hosts of a run should have sent, and that their interfaces counted."""
    if not any(one.run.first_rank("traffic") for one in subject.entries):
        return {}
    sent = event_tables.traffic(subject).select(direction="sent")
    found: Row = {}
    for name, column in (("MB_expected", "expected_bytes"), ("MB_counted", "observed_bytes")):
        of_runs = []
        for entry in entries:
            rows = [row for row in sent if row["run"] == entry.name and row["epoch"]]
            total = add_up(row[column] for row in rows) if rows else None
            of_runs.append(None if total is None else total / 1e6)
        found[name] = mean(of_runs)
    return found


def _ran(subject: Subject) -> str:
    """One line: how many runs of what, on which hosts."""
    tasks = sorted({str(one.settings.get("task")) for one in subject.entries} - {"None"})
    what = f"{len(subject.entries)} run{'' if len(subject.entries) == 1 else 's'}"
    what += f" of {', '.join(tasks)}" if tasks else ""
    hosts = provenance.hosts(subject)
    kinds = {_kind(host): None for host in hosts}
    where = f", on {len(hosts)} host{'' if len(hosts) == 1 else 's'}: {'; '.join(kinds)}"
    versions = [
        f"torch {row['version']}" for row in provenance.versions(subject) if row["name"] == "torch"
    ]
    return ", ".join([what + (where if hosts else ""), *_rates(subject), *versions]) + "."


def _rates(subject: Subject) -> list[str]:
    """The link rates of the study's testbeds."""
    named = [one.settings["rate"] for one in subject.entries if one.settings.get("rate")]
    rates = [link_rate(str(one)) for one in named]
    return [f"links of {' and '.join(dict.fromkeys(rates))}"] if rates else []


def _kind(host: Row) -> str:
    cores = f"{host['cores']} cores" if host["cores"] else None
    parts: list[Any] = [host["processor"], cores, host["memory"], host["GPUs"] or "no GPU"]
    return ", ".join(str(one) for one in parts if one)
