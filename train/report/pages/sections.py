"""A subject becomes the sections of its report: a table each, a figure, and what was counted."""

from dataclasses import dataclass, field

import pandas as pd

from train.report.data import event_tables, scaling, tables
from train.report.data.event_tables import BAND
from train.report.data.subject import Subject
from train.report.pages import plots


@dataclass
class Section:
    """One part of the report; `figure` is an SVG in the page's colour, or empty."""

    title: str
    name: str  # of its figure and its data
    table: pd.DataFrame
    lines: list[str] = field(default_factory=list)
    figure: str = ""
    shown: list[str] | None = None  # columns of the table in the page; None: all of it
    data: dict[str, pd.DataFrame] = field(default_factory=dict)  # what is written beside it
    longest: int = 60  # rows in the page; all are in the data


def build(subject: Subject) -> list[Section]:
    """Those that there are records for, in reading order."""
    seconds = tables.seconds(subject)
    prediction = event_tables.prediction(subject).drop(columns="folders", errors="ignore")
    collectives = event_tables.collectives(subject)
    found = [
        _overview(subject),
        _losses(subject),
        _metrics(subject),
        _seconds(seconds),
        _throughput(seconds),
        _speedup(subject),
        Section("Predicted and measured", "prediction", prediction),
        Section("Ranks", "ranks", tables.per_rank(subject), longest=40),
        _evaluation(subject),
        _traffic(subject),
        Section("Collectives of a step", "collectives", collectives, longest=24),
        Section("Balance", "balance", event_tables.balance(subject)),
        Section("Checkpoints", "checkpoints", event_tables.checkpoints(subject)),
        _failures(subject),
    ]
    return [section for section in found if len(section.table)]


def _overview(subject: Subject) -> Section:
    """Of several runs the settings in which they differ; of one its main ones."""
    table = tables.overview(subject)
    always = {"run", "folder", "state", "workers", "steps", "final_loss", "seed"}
    shown = [name for name in table if name in {*always, *subject.varying}]
    return Section("What was run", "runs", table, shown=shown if len(table) > 1 else None)


def _losses(subject: Subject) -> Section:
    first, every = tables.first_losses(subject), tables.losses(subject)
    figure = plots.losses(every) if len(every) else ""
    return Section("Losses", "first_losses", first, figure=figure, data={"losses": every})


def _metrics(subject: Subject) -> Section:
    table = tables.metrics(subject)
    over_time = len(table) and table["step"].nunique() > 1
    figure = plots.metrics(table) if over_time else ""
    return Section("Metrics", "metrics", table, figure=figure, longest=30)


def _seconds(table: pd.DataFrame) -> Section:
    line = (
        "The first step of each run is left out; intervals are Student's t at 95 %, over the steps "
        "of one run or the means of its repeats. Exposed communication is waited for, overlapped "
        "communication is not; the shares are of a step, and of all communication."
    )
    shown = "run runs steps mean_s median_s spread_s low_s high_s sync_s overlapped_s exposed_s"
    shown += " waited_share hidden_share"
    figure = plots.seconds(table) if len(table) else ""
    return Section("Seconds per iteration", "seconds", table, [line], figure, shown.split())


def _throughput(seconds: pd.DataFrame) -> Section:
    columns = ["run", "precision", "workers", "samples_per_s", "samples_per_s_per_worker"]
    table = seconds.reindex(columns=columns).dropna(subset="samples_per_s")
    figure = plots.throughput(table) if len(table) > 1 else ""
    return Section("Throughput", "throughput", table, figure=figure)


def _speedup(subject: Subject) -> Section:
    table = scaling.speedup(subject)
    if len(table) and not (table["ideal"] > 1).any():
        table = table[:0]
    shown = "series workers samples_per_s base speedup predicted ideal efficiency".split()
    figure = plots.speedup(table) if len(table) else ""
    return Section("Speed-up and efficiency", "speedup", table, figure=figure, shown=shown)


def _evaluation(subject: Subject) -> Section:
    table = tables.evaluation_seconds(subject)
    figure = plots.evaluation(table) if len(table) > 1 else ""
    return Section("Evaluation", "evaluation", table, figure=figure)


def _traffic(subject: Subject) -> Section:
    table = event_tables.traffic(subject)
    if table.empty:
        return Section("Traffic", "traffic", table)
    totals, lines = event_tables.traffic_totals(table), []
    ratios = list(table.loc[table["band"].isin(("inside", "outside")), "ratio"])
    if ratios:
        inside = sum(BAND[0] <= ratio <= BAND[1] for ratio in ratios)
        lines.append(
            f"{inside} of {len(ratios)} measurements lie in [{BAND[0]:.2f}, {BAND[1]:.2f}] "
            f"times the expected bytes (from {min(ratios):.3f} to {max(ratios):.3f})."
        )
    lines += [f"Noted while measuring: {note}." for note in table["note"].dropna().unique()]
    lines.append(
        "Expected bytes are those that the collectives' algorithms move, wire_bytes with the "
        "headers of the interface's packets; epoch 0 is what made the replicas equal at first."
    )
    shown = ["run", "host", "epoch", "direction", "expected_bytes"]
    shown += ["wire_bytes", "observed_bytes", "ratio", "ratio_wire", "band"]
    figure = plots.traffic(totals) if len(totals) else ""
    data = {"traffic_totals": totals}
    return Section("Traffic", "traffic", table, lines, figure, shown, data, longest=40)


def _failures(subject: Subject) -> Section:
    restarts = sum(len(entry.run.attempts) for entry in subject.entries)
    lines = [f"Started again {restarts} time(s) in all."] if restarts else []
    return Section("Failures and restarts", "failures", event_tables.failures(subject), lines)
