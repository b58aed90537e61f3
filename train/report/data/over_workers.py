"""How time, throughput and memory depend on the number of workers: a row for each group of repeats.

The seconds of an epoch are those that all its samples take at the rate of the timed steps: the
first step of a run, which includes one-time costs, counts as the mean of the other steps.
"""

import pandas as pd

from train.report.data import quantities, scaling, tables
from train.report.data.columns import SAME_WORK, WORKERS
from train.report.data.frames import mean_of_all, records
from train.report.data.reader import mean, numbers
from train.report.data.subject import Subject


def training(subject: Subject) -> pd.DataFrame:
    """Accuracy, seconds and speed-up by number of workers and by batch size per worker.

    If no run on fewer workers had the same batch, the base is a run with another batch; the column
    `base` names it. A run that is its own base has no gain.
    """
    known = tables.seconds(subject)
    table = scaling.with_bases(scaling.rates(subject, known), subject, list(SAME_WORK))
    nearer = scaling.speedup(subject).set_index("run")[["base", "base_workers"]]  # same batch
    nearer = nearer.reindex(table.index)
    of_base = table[WORKERS].reindex(table["base"]).to_numpy()
    farther = table["base"].where(table[WORKERS] > of_base, table["run"])
    table["base"] = nearer["base"].where(nearer["base_workers"] <= of_base, farther)
    names, rate = tables.main_metrics(subject), table["samples_per_s"]
    kept = subject.steps[subject.steps["is_kept"]].groupby("label")["samples"]
    repeats = subject.runs["label"].value_counts()
    samples = subject.runs.groupby("label")["epoch_samples"].agg(mean).astype(float)
    trained = kept.agg(lambda samples: samples.sum(skipna=False))
    of_labels = tables.last_metrics(subject).reindex(columns=names)
    of_labels = of_labels.reindex(repeats.index).assign(
        steps=kept.size() / repeats,
        epoch_s=samples.where(samples > 0) / rate,
        train_s=trained.where(trained > 0) / repeats / rate,
    )
    table = table.drop(columns=of_labels, errors="ignore").join(of_labels)
    table["samples_per_s_per_worker"] = rate / table[WORKERS]
    columns = ["series", "run", subject.roles.x, WORKERS, "precision", "batch_of_each", *names]
    columns += ["steps", "epoch_s", "train_s", "samples_per_s", "samples_per_s_per_worker"]
    columns = list(dict.fromkeys([*columns, "speedup", "base"]))
    table = quantities.with_doubts(quantities.with_gains(table), records(known))
    return table.reindex(columns=[*columns, "doubt"]).reset_index(drop=True)


def evaluation(subject: Subject) -> pd.DataFrame:
    """Seconds of evaluations and their parts, and the speed-up.

    The speed-up is relative to the study's reference or, if there is none, to the run on the fewest
    workers of the series.
    """
    of_labels = subject.evaluations.groupby("label", sort=False)
    parts = ["samples", "predict_s", "metric_s", "sync_s"]
    means = of_labels[parts].agg(mean_of_all)
    estimates = quantities.estimates(subject.evaluations.set_index("label")["eval_s"])
    means["evaluations"] = of_labels["eval_s"].count()
    of_runs = list(dict.fromkeys(["run", "series", "sync", WORKERS, subject.roles.x]))
    table = tables.firsts(subject).reindex(columns=of_runs)
    table = table.join(estimates, how="inner").rename(columns={"mean_s": "eval_s"}).join(means)
    table["samples_per_s"] = table["samples"] / table["eval_s"].where(table["eval_s"] > 0)
    table["samples_per_s_per_worker"] = table["samples_per_s"] / table[WORKERS]
    table = quantities.with_gains(scaling.with_bases(table, subject, ["series"]))
    columns = ["run", subject.roles.x, WORKERS, "evaluations", "samples", "eval_s", "low_s"]
    columns += ["high_s", "predict_s", "metric_s", "sync_s", "samples_per_s", "series"]
    columns += ["samples_per_s_per_worker", "base_workers", "base", "speedup", "efficiency"]
    table = table[list(dict.fromkeys(columns))].reset_index(drop=True)
    return quantities.with_doubts(table, records(estimates.rename_axis("run").reset_index()))


def memory(subject: Subject) -> pd.DataFrame:
    """The peak memory of the largest worker of each run: main memory and GPU memory."""
    peaks = ["peak_memory_bytes", "peak_gpu_memory_bytes"]
    most = subject.runs.groupby("label", sort=False)[peaks].max().astype(float)
    table = tables.firsts(subject)[["run", WORKERS, "precision"]].join(most)
    return table.dropna(subset="peak_memory_bytes").reset_index(drop=True)


def has_points(table: pd.DataFrame, x: str) -> bool:
    """Whether column x of `table` has only numbers, and several of them in at least one series."""
    if not len(table) or len(numbers(table[x])) < len(table):
        return False
    return bool((table.groupby("series")[x].nunique() > 1).any())
