"""A subject becomes the sections of its report: sentences, a figure and a table each."""

from dataclasses import dataclass, field, replace
from typing import Any

from train.report.data import event_tables, rank_work, scaling, tables
from train.report.data.event_tables import add_up
from train.report.data.reader import Row
from train.report.data.scaling import DOUBTFUL
from train.report.data.statistics import numbers
from train.report.data.subject import Subject
from train.report.data.tables import Table
from train.report.pages import conclusions, plots, sentences

MOST_PAIRS = 12  # of bars, in a figure that can be read


@dataclass
class Section:
    """One part of the report; `figure` is an SVG in the page's colour, or empty."""

    title: str
    table: Table
    sentences: list[str] = field(default_factory=list)
    figure: str = ""
    conclusion: str = ""  # what the figure shows, said above it
    shown: list[str] | None = None  # columns of the table in the page; None: all of it
    data: list[Table] = field(default_factory=list)  # what is written beside it
    longest: int = 60  # rows in the page; all are in the data


def build(subject: Subject) -> list[Section]:
    """Those that there are records for, in reading order."""
    balance = event_tables.balance(subject)
    checkpoints = event_tables.checkpoints(subject)
    found = [
        _overview(subject),
        _losses(subject),
        _metrics(subject),
        _seconds(subject),
        _throughput(subject),
        _speedup(subject),
        _prediction(subject),
        _ranks(subject),
        _evaluation(subject),
        _traffic(subject),
        Section("Collectives of a step", event_tables.collectives(subject), longest=24),
        Section("Balance", balance, sentences.of_balance(balance)),
        Section("Checkpoints", checkpoints, sentences.of_checkpoints(checkpoints)),
        _failures(subject),
    ]
    return [section for section in found if section.table.rows]


def _overview(subject: Subject) -> Section:
    """Of several runs the settings in which they differ; of one its main ones."""
    table = event_tables.overview(subject)
    always = {"run", "folder", "state", "workers", "steps", "final_loss"}
    shown = [name for name in table.columns if name in {*always, *subject.varying, "seed"}]
    return Section("What was run", table, shown=shown if len(table.rows) > 1 else None)


def _ranks(subject: Subject) -> Section:
    table = rank_work.per_rank(subject)
    shown = [name for name in table.columns if name not in ("own_work_low_s", "own_work_high_s")]
    return Section("Ranks", table, sentences.of_ranks(table), shown=shown, longest=40)


def _losses(subject: Subject) -> Section:
    first, every = tables.first_losses(subject), tables.losses(subject)
    figure = plots.losses(every) if every.rows else ""
    lines = sentences.of_losses(first, subject)
    first.rows = [row for row in first.rows if row["loss_1"] is not None or row["steps_compared"]]
    return Section(
        "Losses", first, lines, figure, conclusions.equal_losses(subject), data=[first, every]
    )


def _metrics(subject: Subject) -> Section:
    table = tables.metrics(subject)
    over_time = len({row["step"] for row in table.rows}) > 1
    figure = plots.metrics(table) if over_time else ""
    conclusion = conclusions.metrics(table) if over_time else ""
    return Section("Metrics", table, figure=figure, conclusion=conclusion, longest=30)


def _seconds(subject: Subject) -> Section:
    table = tables.seconds(subject)
    figure = plots.seconds(table) if table.rows else ""
    lines = sentences.of_seconds(table)
    if table.rows:
        lines.append(
            "The first step of each run is left out. The interval is Student's t at 95 %, over the "
            "steps of one run or, where a run was repeated, over the means of its repeats. Of "
            "communication, overlapped seconds are hidden behind the backward pass and exposed "
            "ones are waited for; the shares are of a step, and of all communication."
        )
    shown = ["run", "runs", "steps", "mean_s", "median_s", "spread_s", "low_s", "high_s"]
    shown += ["sync_s", "overlapped_s", "exposed_s", "waited_share", "hidden_share"]
    conclusion = conclusions.fastest(table.rows, subject)
    return Section("Seconds per iteration", table, lines, figure, conclusion, shown)


def _throughput(subject: Subject) -> Section:
    columns = ["run", "precision", "workers", "samples_per_s", "samples_per_s_per_worker"]
    table = Table("throughput", "Throughput", columns)
    precision = {entry.label: entry.settings.get("precision") for entry in subject.entries}
    rows = tables.seconds(subject).rows
    for row in rows:
        if row["samples_per_s"] is not None:
            row = row | {"precision": precision.get(row["run"])}
            table.add(**{name: row[name] for name in columns})
    figure = plots.throughput(table) if table.rows[1:] else ""
    return Section("Throughput", table, figure=figure, conclusion=conclusions.most_samples(rows))


def _speedup(subject: Subject) -> Section:
    table = scaling.speedup(subject)
    if all(row["ideal"] <= 1 for row in table.rows):
        return Section("", Table("speedup", ""))
    shown = ["series", "workers", "samples_per_s", "base", "speedup", "ideal", "efficiency"]
    lines = sentences.of_speedup(table)
    best = max(table.rows, key=lambda row: row["speedup"])
    conclusion = ""
    if best["run"] != best["base"] and best["efficiency"] <= DOUBTFUL:
        gain = f"{best['speedup']:.2f} times the samples per second of {best['base']}"
        conclusion = f"{best['run']}: {gain}."
    figure = plots.speedup(table)
    return Section("Speed-up and efficiency", table, lines, figure, conclusion, shown)


def _prediction(subject: Subject) -> Section:
    table = event_tables.prediction(subject)
    lines = sentences.of_prediction(table)
    if _holds_doubtful_words(subject, table):
        lines.append("What an older version wrote of it is left out; `python -m train.cost` anew.")
    else:
        for name, opening in (("words", ""), ("assumptions", "Assumed: ")):
            more = subject.prediction.get(name)
            lines += [opening + str(one) for one in more] if isinstance(more, list) else []
    labels = [f"{row['mode']}, {row['workers']} workers" for row in table.rows]
    figure = plots.pairs(table, labels, "predicted_s", "measured_s", "seconds per iteration")
    return Section("Predicted and measured", table, lines, figure, _of_model(table))


def _of_model(table: Table) -> str:
    errors = numbers(table.column("error"))
    if not errors:
        return ""
    if event_tables.is_far_off(table):
        return "The model of cost does not explain all that was measured."
    return f"The model of cost is within {max(map(abs, errors)):.0%} of all that was measured."


def _holds_doubtful_words(subject: Subject, table: Table) -> bool:
    """Whether the file predicts what was not measured although the model is far off."""
    modes = subject.prediction.get("seconds_per_iteration")
    every = [one for by in modes.values() for one in by.values()] if table.rows and modes else []
    return event_tables.is_far_off(table) and len(every) > len(table.rows)


def _evaluation(subject: Subject) -> Section:
    table, figure = tables.evaluation_seconds(subject), ""
    if len(table.rows) > 1:
        unit = "seconds per evaluation"
        figure = plots.bars(table, "eval_s", unit, "low_s", "high_s")
    conclusion = conclusions.fastest(table.rows, subject, "eval_s")
    return Section("Evaluation", table, figure=figure, conclusion=conclusion)


def _traffic(subject: Subject) -> Section:
    table = event_tables.traffic(subject)
    totals = _traffic_totals(table)
    drawn = _busiest(totals)
    labels = [f"{row['run']}\n{row['host']}, {row['direction']}" for row in drawn.rows]
    figure = ""
    if len(drawn.rows) <= 40:
        names = ("expected_bytes", "observed_bytes")
        figure = plots.pairs(drawn, labels, *names, "MB, all epochs", 1e6)
    shown = ["run", "host", "epoch", "direction", "expected_bytes"]
    shown += ["wire_bytes", "observed_bytes", "ratio", "ratio_wire", "band"]
    lines = sentences.of_traffic(table)
    if figure and len(drawn.rows) < len(totals.rows):
        lines.append("The figure has the host of each run that moves the most bytes.")
    conclusion = conclusions.counted(table)
    if table.rows:
        lines.append(
            "Expected bytes are those that the collectives' algorithms move, wire_bytes with the "
            "headers of the interface's packets; epoch 0 is what made the replicas equal at first."
        )
    return Section(
        "Traffic", table, lines, figure, conclusion, shown, data=[table, totals], longest=40
    )


def _traffic_totals(table: Table) -> Table:
    """Over the epochs of training; a part that is not known leaves its total unknown."""
    sizes = ("expected_bytes", "observed_bytes")
    totals = Table("traffic_totals", "Traffic of all epochs", ["run", "host", "direction", *sizes])
    rows = [row for row in table.rows if row["epoch"]]
    for run, host, direction in dict.fromkeys((r["run"], r["host"], r["direction"]) for r in rows):
        parts = [
            row
            for row in rows
            if (row["run"], row["host"], row["direction"]) == (run, host, direction)
        ]
        sums = {name: add_up(row[name] for row in parts) for name in sizes}
        totals.add(run=run, host=host, direction=direction, **sums)
    return totals


def _busiest(totals: Table) -> Table:
    """Those that a figure has room for: all, those of each run's busiest host, or one of a run."""
    kept = totals.rows
    for keys in (("run", "host", "direction"), ("run", "direction"), ("run",)):
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in totals.rows:
            groups.setdefault(tuple(row[key] for key in keys), []).append(row)
        kept = [max(rows, key=lambda row: row["expected_bytes"] or 0) for rows in groups.values()]
        if len(kept) <= MOST_PAIRS:
            break
    return replace(totals, rows=kept)


def _failures(subject: Subject) -> Section:
    table = event_tables.failures(subject)
    restarts = sum(len(entry.run.attempts) for entry in subject.entries)
    lines = [f"Started again {restarts} time(s) in all."] if restarts else []
    return Section("Failures and restarts", table, lines)
