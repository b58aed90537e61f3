"""Turn a subject into the sections of its report: each a table, a figure, and its data."""

from dataclasses import dataclass, field

import pandas as pd

from train.report.data import event_tables, over_workers, scaling, tables
from train.report.data.event_tables import BAND
from train.report.data.subject import Subject
from train.report.pages import plots

# Charts over workers: the name of each, its column and its axis.
OF_TRAINING = {
    "throughput": ("samples_per_s", "samples per second, all workers"),
    "throughput_per_device": ("samples_per_s_per_worker", "samples per second, each worker"),
}
OF_EVALUATION = {
    "evaluation_per_device": ("samples_per_s_per_worker", "samples per second, each worker"),
    "evaluation_speedup": ("speedup", "speed-up over its fewest workers"),
    "prediction_time": ("predict_s", "seconds of predictions"),
    "metric_time": ("metric_s", "seconds of the metric"),
    "broadcast_time": ("sync_s", "seconds until all have the metric"),
}

DRIFT = (
    "The largest difference of a parameter's value between a rank and rank 0, before all ranks "
    "took rank 0's parameters (--equalize-every); zero where all devices round alike."
)


@dataclass
class Section:
    """One part of the report; `figures` are SVGs in the page's colour, by name."""

    title: str
    name: str  # of its data
    table: pd.DataFrame
    lines: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    shown: list[str] | None = None  # columns of the table in the page; None: all of them
    data: dict[str, pd.DataFrame] = field(default_factory=dict)  # written beside the page
    longest: int = 60  # rows in the page; the data has all of them


def build(subject: Subject) -> list[Section]:
    """The sections for which there are records, in reading order."""
    seconds, training = tables.seconds(subject), over_workers.training(subject)
    prediction = event_tables.prediction(subject).drop(columns="folders", errors="ignore")
    collectives = event_tables.collectives(subject)
    found = [
        _training(training),
        _overview(subject),
        _losses(subject),
        _metrics(subject),
        _seconds(seconds),
        _throughput(training),
        _speedup(subject),
        Section("Predicted and measured", "prediction", prediction),
        Section("Ranks", "ranks", tables.per_rank(subject), longest=40),
        _evaluation(subject),
        _memory(subject),
        _traffic(subject),
        Section("Collectives of a step", "collectives", collectives, longest=40),
        Section("Balance", "balance", event_tables.balance(subject)),
        Section("Drift between ranks", "drift", event_tables.drift(subject), [DRIFT]),
        Section("Checkpoints", "checkpoints", event_tables.checkpoints(subject)),
        _failures(subject),
    ]
    return [section for section in found if len(section.table)]


def _overview(subject: Subject) -> Section:
    """For several runs the settings in which they differ; for one its main ones."""
    table = tables.overview(subject)
    always = {"run", "folder", "state", "workers", "steps", "final_loss", "seed"}
    shown = [name for name in table if name in {*always, *subject.varying}]
    return Section("What was run", "runs", table, shown=shown if len(table) > 1 else None)


def _losses(subject: Subject) -> Section:
    first, every = tables.first_losses(subject), tables.losses(subject)
    figures = {"first_losses": plots.losses(every)} if len(every) else {}
    return Section("Losses", "first_losses", first, figures=figures, data={"losses": every})


def _metrics(subject: Subject) -> Section:
    table = tables.metrics(subject)
    over_time = len(table) and table["step"].nunique() > 1
    figures = {"metrics": plots.metrics(table)} if over_time else {}
    return Section("Metrics", "metrics", table, figures=figures, longest=30)


def _seconds(table: pd.DataFrame) -> Section:
    line = (
        "The first step of each run is left out; intervals are Student's t at 95 %, over the steps "
        "of one run or the means of its repeats. Exposed communication is waited for, overlapped "
        "communication is not; the shares are of a step, and of all communication."
    )
    shown = "run runs steps mean_s median_s spread_s low_s high_s overlapped_s exposed_s"
    shown += " waited_share hidden_share"
    figures = plots.in_parts("seconds", plots.seconds, table)
    return Section("Seconds per iteration", "seconds", table, [line], figures, shown.split())


def _training(table: pd.DataFrame) -> Section:
    """The results of BSC's study of training: accuracy, time and speed-up by devices and batch."""
    line = (
        "Seconds are those of all samples, of an epoch and of the training, at the rate of all "
        "steps but the first; the speed-up is one of samples per second, over the run named last."
    )
    alike = len(table) and table.duplicated(["workers", "precision", "batch_of_each"]).any()
    hidden = ("series" if alike else "run", "series", "samples_per_s_per_worker")
    shown = [name for name in table if name not in hidden]
    figures = plots.over_workers(table, {"epoch_time": ("epoch_s", "seconds of an epoch")})
    of_several = table if over_workers.has_widths(table) else table[:0]
    return Section("Devices, accuracy and time", "training", of_several, [line], figures, shown)


def _throughput(table: pd.DataFrame) -> Section:
    """Samples per second: over workers if there are several numbers of them, else bars."""
    figures = plots.over_workers(table, OF_TRAINING) if len(table) else {}
    if len(table) > 1 and not figures:
        figures = plots.in_parts("throughput", plots.throughput, table)
    columns = ["run", "precision", "workers", "samples_per_s", "samples_per_s_per_worker"]
    return Section("Throughput", "throughput", table.reindex(columns=columns), figures=figures)


def _speedup(subject: Subject) -> Section:
    table = scaling.speedup(subject)
    if len(table) and not (table["ideal"] > 1).any():
        table = table[:0]
    shown = "series workers samples_per_s base speedup predicted ideal efficiency".split()
    figures = {"speedup": plots.speedup(table)} if len(table) else {}
    return Section("Speed-up and efficiency", "speedup", table, figures=figures, shown=shown)


def _evaluation(subject: Subject) -> Section:
    line = (
        "Each worker predicts its part; one collective (sync) then adds up what all have counted, "
        "in the place of a metric that one process computes and broadcasts."
    )
    table = over_workers.evaluation(subject)
    figures = plots.in_parts("evaluation", plots.evaluation, table) if len(table) > 1 else {}
    figures |= plots.over_workers(table, OF_EVALUATION) if len(table) else {}
    shown = [name for name in table if name not in ("series", "base_workers")]
    return Section("Evaluation", "evaluation", table, [line], figures, shown)


def _memory(subject: Subject) -> Section:
    line = "The most that any worker of a run had resident, libraries and samples included."
    table = over_workers.memory(subject)
    figures = plots.in_parts("memory", plots.memory, table) if len(table) > 1 else {}
    return Section("Memory", "memory", table, [line], figures)


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
    figures = {"traffic": plots.traffic(totals)} if len(totals) else {}
    data = {"traffic_totals": totals}
    return Section("Traffic", "traffic", table, lines, figures, shown, data, longest=40)


def _failures(subject: Subject) -> Section:
    restarts = sum(len(entry.run.attempts) for entry in subject.entries)
    lines = [f"Started again {restarts} time(s) in all."] if restarts else []
    return Section("Failures and restarts", "failures", event_tables.failures(subject), lines)
