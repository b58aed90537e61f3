"""A subject becomes the sections of its report: a table each, a figure, and what was counted."""

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

OF_SECONDS = (
    "The first step of each run is left out; intervals are Student's t at 95 %, over the steps "
    "of one run or the means of its repeats. Exposed communication is waited for, overlapped "
    "communication is not; the shares are of a step, and of all communication."
)
SECONDS = (
    "run runs steps mean_s median_s spread_s low_s high_s overlapped_s exposed_s waited_share "
    "hidden_share"
).split()
SPEEDUP = "series workers samples_per_s base speedup predicted ideal efficiency".split()
# What BSC's study shows of a training: accuracy, time and speed-up by devices and batch.
OF_DEVICES = (
    "Seconds are those of all samples, of an epoch and of the training, at the rate of all "
    "steps but the first; the speed-up is one of samples per second, over the run named last."
)
OF_PARTS = (
    "Each worker predicts its part; one collective (sync) then adds up what all have counted, "
    "in the place of a metric that one process computes and broadcasts."
)
OF_MEMORY = "The most that any worker of a run had resident, libraries and samples included."
OF_BYTES = (
    "Expected bytes are those that the collectives' algorithms move, wire_bytes with the "
    "headers of the interface's packets; epoch 0 is what made the replicas equal at first."
)
TRAFFIC = (
    "run host epoch direction expected_bytes wire_bytes observed_bytes ratio ratio_wire band"
).split()
DRIFT = (
    "The largest difference of a parameter's value between a rank and rank 0, before all ranks "
    "took rank 0's parameters (--equalize-every); zero where all devices round alike."
)


@dataclass
class Section:
    """One part of the report; `figures` are SVGs in the page's colour, by the name of each."""

    title: str
    name: str  # of its data
    table: pd.DataFrame
    lines: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    shown: list[str] | None = None  # columns of the table in the page; None: all of it
    data: dict[str, pd.DataFrame] = field(default_factory=dict)  # what is written beside it
    longest: int = 60  # rows in the page; all are in the data


def build(subject: Subject) -> list[Section]:
    """Those that there are records for, in reading order."""
    seconds, training = tables.seconds(subject), over_workers.training(subject)
    losses, speedup = tables.losses(subject), scaling.speedup(subject)
    metrics, memory = tables.metrics(subject), over_workers.memory(subject)
    prediction = event_tables.prediction(subject).drop(columns="folders", errors="ignore")
    restarts = sum(len(entry.run.attempts) for entry in subject.entries)
    restarted = [f"Started again {restarts} time(s) in all."] if restarts else []
    found = [
        _training(training),
        _overview(subject),
        Section("Losses", "first_losses", tables.first_losses(subject),
                figures={"first_losses": plots.losses(losses)} if len(losses) else {},
                data={"losses": losses}),
        Section("Metrics", "metrics", metrics, figures=_over_epochs(metrics), longest=30),
        Section("Seconds per iteration", "seconds", seconds, [OF_SECONDS],
                plots.in_parts("seconds", plots.seconds, seconds), SECONDS),
        _throughput(training),
        Section("Speed-up and efficiency", "speedup", speedup, shown=SPEEDUP,
                figures={"speedup": plots.speedup(speedup)} if len(speedup) else {}),
        Section("Predicted and measured", "prediction", prediction),
        Section("Ranks", "ranks", tables.per_rank(subject), longest=40),
        _evaluation(over_workers.evaluation(subject)),
        Section("Memory", "memory", memory, [OF_MEMORY],
                plots.in_parts("memory", plots.memory, memory) if len(memory) > 1 else {}),
        _traffic(event_tables.traffic(subject)),
        Section("Collectives of a step", "collectives", event_tables.collectives(subject),
                longest=40),
        Section("Balance", "balance", event_tables.balance(subject)),
        Section("Drift between ranks", "drift", event_tables.drift(subject), [DRIFT]),
        Section("Checkpoints", "checkpoints", event_tables.checkpoints(subject)),
        Section("Failures and restarts", "failures", event_tables.failures(subject), restarted),
    ]  # fmt: skip
    return [section for section in found if len(section.table)]


def _overview(subject: Subject) -> Section:
    """Of several runs the settings in which they differ; of one its main ones."""
    table = tables.overview(subject)
    always = {"run", "folder", "state", "workers", "steps", "final_loss", "seed"}
    shown = [name for name in table if name in {*always, *subject.varying}]
    return Section("What was run", "runs", table, shown=shown if len(table) > 1 else None)


def _over_epochs(metrics: pd.DataFrame) -> dict[str, str]:
    is_line = len(metrics) and metrics["step"].nunique() > 1
    return {"metrics": plots.metrics(metrics)} if is_line else {}


def _training(table: pd.DataFrame) -> Section:
    alike = len(table) and table.duplicated(["workers", "precision", "batch_of_each"]).any()
    hidden = ("series" if alike else "run", "series", "samples_per_s_per_worker")
    shown = [name for name in table if name not in hidden]
    figures = plots.over_workers(table, {"epoch_time": ("epoch_s", "seconds of an epoch")})
    of_several = table if over_workers.has_widths(table) else table[:0]
    title = "Devices, accuracy and time"
    return Section(title, "training", of_several, [OF_DEVICES], figures, shown)


def _throughput(table: pd.DataFrame) -> Section:
    """Samples per second: over workers where there are several numbers of them, else bars."""
    figures = plots.over_workers(table, OF_TRAINING)
    if len(table) > 1 and not figures:
        figures = plots.in_parts("throughput", plots.throughput, table)
    columns = ["run", "precision", "workers", "samples_per_s", "samples_per_s_per_worker"]
    return Section("Throughput", "throughput", table.reindex(columns=columns), figures=figures)


def _evaluation(table: pd.DataFrame) -> Section:
    figures = plots.in_parts("evaluation", plots.evaluation, table) if len(table) > 1 else {}
    figures |= plots.over_workers(table, OF_EVALUATION)
    shown = [name for name in table if name not in ("series", "base_workers")]
    return Section("Evaluation", "evaluation", table, [OF_PARTS], figures, shown)


def _traffic(table: pd.DataFrame) -> Section:
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
    figures = {"traffic": plots.traffic(totals)} if len(totals) else {}
    return Section(
        "Traffic", "traffic", table, [*lines, OF_BYTES], figures, TRAFFIC,
        data={"traffic_totals": totals}, longest=40,
    )  # fmt: skip
