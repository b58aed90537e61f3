"""The tables behind a report's figures: losses, metrics, seconds and ranks.

Each table is made from the runs and steps of a subject. A loss curve is compared with that of a
reference, whose settings may differ as long as they do not affect losses: all sync modes and splits
compute the same mean gradient by one rule, so their losses should differ by rounding alone.
"""

import pandas as pd

from train.records.schema import PHASES
from train.report.data import quantities
from train.report.data.columns import NAME_COLUMN, WORKERS
from train.report.data.frames import loss_of, mean_of_all, scores
from train.report.data.reader import mean
from train.report.data.subject import Subject

FIRST = 5  # losses that are shown one by one, as in the courses
PHASE_COLUMNS = [f"{phase}_s" for phase in PHASES]
OWN_WORK = ["data_s", "forward_s", "backward_s"]  # the phases before a rank can wait for others


def first_losses(subject: Subject) -> pd.DataFrame:
    """The first losses of each run, and its differences from its reference and a similar run."""
    curve = subject.curves.dropna(subset="loss")
    first = curve.pivot(index="run", columns="step", values="loss")
    first = first.reindex(index=curve["run"].unique(), columns=range(1, FIRST + 1))
    gaps = curve.assign(apart=curve["difference"].abs()).dropna(subset="apart")
    furthest = gaps.loc[gaps.groupby("run")["apart"].idxmax()].set_index("run")
    like = _same_draw(subject.runs)  # with dropout, only the losses of these runs must agree
    of_like = (curve["loss"] - loss_of(curve["run"].map(like), curve)).abs()
    to_like = of_like.groupby(curve["run"]).max()
    of_runs = pd.DataFrame(
        {
            "reference": subject.runs["reference"],
            "steps_compared": gaps.groupby("run").size().astype(object),
            "largest_difference": furthest["apart"],
            "at_step": furthest["step"].astype(object),
            "same_workers_and_split": like.where(like.index.isin(to_like.dropna().index)),
            "difference_to_it": to_like,
        }
    )
    return first.add_prefix("loss_").join(of_runs).rename_axis(index="run").reset_index()


def _same_draw(runs: pd.DataFrame) -> pd.Series:
    """For each run, the first run with the same reference, number of workers, split and seed.

    Its dropout draws the same masks. None if it is the run itself or its reference.
    """
    draw = runs.reindex(columns=["run", "split", "seed", WORKERS])
    draw["base"] = runs["reference"].fillna(runs["run"])
    draw["split"] = draw["split"].astype(object).replace("", None).fillna("even")
    groups = draw.groupby(["base", WORKERS, "split", "seed"], dropna=False, sort=False)
    first = groups["run"].transform("first")
    return first.where((first != runs["run"]) & (first != runs["reference"]))


def evaluated(subject: Subject) -> pd.DataFrame:
    """A row for each evaluation, a column for each metric."""
    at = subject.evaluations[["run", "epoch", "step"]]
    metrics = scores(subject.evaluations)
    metrics = metrics[[name for name in metrics if name not in at]].dropna(how="all")
    return at.join(metrics, how="right") if len(metrics) else at[:0]


def metrics(subject: Subject) -> pd.DataFrame:
    """A row for each metric of each evaluation."""
    at = subject.evaluations[["run", "series", NAME_COLUMN, "epoch", "step"]]
    values = scores(subject.evaluations).stack().dropna()
    values = values.rename_axis([None, "metric"]).reset_index("metric", name="value")
    return at.join(values, how="right")


def main_metrics(subject: Subject) -> list[str]:
    """The first metric, for each evaluation set, or else the first evaluation loss."""
    names = list(scores(subject.evaluations))
    first = next((name for name in names if not name.startswith("eval_loss")), None)
    if first is None:
        return names[:1]
    stem = first.rpartition("_")[0]
    return [name for name in names if name == first or (stem and name.startswith(f"{stem}_"))]


def last_metrics(subject: Subject) -> pd.DataFrame:
    """For each label, the mean of each metric over the last evaluations of its repeats."""
    last = subject.evaluations.drop_duplicates("run", keep="last")
    return scores(last).groupby(last["label"], sort=False).agg(mean)


def firsts(subject: Subject) -> pd.DataFrame:
    """The first run of each label, indexed by label; all repeats have its settings."""
    first = subject.runs.drop_duplicates("label").drop(columns="run")
    return first.rename(columns={"label": "run"}).set_index("run", drop=False).rename_axis(None)


def seconds(subject: Subject) -> pd.DataFrame:
    """A row for each label: seconds of a step and of its phases, and samples per second.

    Estimates are over the steps of a single run, or over the means of several runs.
    """
    timed = subject.steps[subject.steps["is_timed"] & subject.steps["is_lead"]]
    measured = ["step_s", *PHASE_COLUMNS, "overlapped_s", "samples"]
    of_runs = timed.groupby(["label", "run"], sort=False)[measured].agg(mean_of_all)
    by_label = of_runs.groupby("label", sort=False)
    means, repeats = by_label.agg(mean_of_all), by_label.size()
    of_steps = timed.set_index("label")["step_s"]
    several = of_runs["step_s"].droplevel("run")
    is_repeated = repeats > 1
    draws = [of_steps[~of_steps.index.map(is_repeated)], several[several.index.map(is_repeated)]]
    table = firsts(subject).loc[means.index, ["sync", "precision", WORKERS]].rename_axis("run")
    table = table.assign(sync=table["sync"].fillna("?"), runs=repeats)
    table["steps"] = of_steps.groupby(level=0).size()
    table = table.join(quantities.estimates(pd.concat(draws))).join(means[PHASE_COLUMNS])
    mean_s, workers = means["step_s"], table[WORKERS].astype(int)
    table["other_s"] = (mean_s - means[PHASE_COLUMNS].sum(axis=1, skipna=False)).clip(lower=0)
    hidden = table["overlapped_s"] = means["overlapped_s"].where(workers > 1)
    waited = table["exposed_s"] = means["sync_s"].where(hidden.notna())
    both = hidden.fillna(0) + waited.fillna(0)
    table["waited_share"] = waited / mean_s.where(mean_s > 0)
    table["hidden_share"] = hidden.fillna(0) / both.where(both > 0)
    samples = means["samples"]
    table["samples_per_s"] = samples.where(samples > 0) / mean_s.where(mean_s > 0)
    table["samples_per_s_per_worker"] = table["samples_per_s"] / workers
    return table.reset_index()


def per_rank(subject: Subject) -> pd.DataFrame:
    """A row for each rank; its own work is what it does before it waits for others."""
    timed = subject.steps[subject.steps["is_timed"] & (subject.steps[WORKERS] > 1)]
    of_ranks = timed.groupby(["run", "rank"], sort=False)
    means = of_ranks[["step_s", "local_samples", "sync_s"]].agg(mean).astype(float)
    own = timed.set_index(["run", "rank"])[OWN_WORK].sum(axis=1, skipna=False)
    table = pd.DataFrame({"steps": of_ranks.size(), "local_samples": means["local_samples"]})
    estimates = quantities.estimates(own)[["mean_s", "low_s", "high_s"]]
    table = table.join(estimates.rename(columns={"mean_s": "own_work_s"})).join(means["sync_s"])
    table["samples_per_s"] = means["local_samples"] / means["step_s"]
    return table[means["step_s"] > 0].reset_index()
