"""A subject becomes the sections of its report: a table each, figures, and what was counted.

What sections are called and say is in sections.yaml.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from train.report.data import event_tables, frames, over_workers, quantities, scaling, tables
from train.report.data.event_tables import BAND
from train.report.data.subject import Subject
from train.report.pages import plots

SHORT = 12  # rows of a table that has a place in the body
TEXTS = Path(__file__).with_name("sections.yaml")
Charts = Mapping[str, Mapping[str, tuple[str, str]]]  # by the names of sections


@dataclass
class Section:
    """One part of the report; `figures` are SVGs in the page's colour, by name."""

    name: str  # of its data
    table: pd.DataFrame
    title: str
    text: str = ""
    lines: list[str] = field(default_factory=list)  # before it
    figures: dict[str, str] = field(default_factory=dict)
    shown: list[str] | None = None  # columns of the table in the page; None: all of them
    data: dict[str, pd.DataFrame] = field(default_factory=dict)  # written beside the page
    longest: int = 60  # rows in the page; the data has all of them
    in_appendix: bool = False  # the table; figures and lines stay in the body

    @property
    def rows(self) -> pd.DataFrame:
        """The rows in the page: the first ones of each run, as many of each as fit."""
        table = quantities.believed(self.table.reset_index(drop=True))
        number_in_run = table.groupby(table.columns[0], dropna=False).cumcount()
        first = number_in_run.sort_values(kind="stable").index[: self.longest]
        return table.loc[first.sort_values()]

    @property
    def more_rows(self) -> int:
        """How many rows are only in the data."""
        return max(0, len(self.table) - self.longest)


def build(subject: Subject) -> list[Section]:
    """The sections for which there are records, in reading order."""
    texts = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    charts = {name: one.pop("charts", {}) for name, one in texts.items()}
    parts = [
        Section(name, table, **(texts[name] | more))
        for name, table, more in _parts(subject, charts)
        if len(table)
    ]
    for part in parts:
        part.in_appendix = len(part.table) > SHORT
    return parts


def _parts(subject: Subject, charts: Charts) -> Iterator[tuple[str, pd.DataFrame, dict[str, Any]]]:
    """The data of each section, and what of it the text does not say."""
    x = subject.roles.x
    training = over_workers.training(subject)
    alike = len(training) and training.duplicated(["workers", "precision", "batch_of_each"]).any()
    # samples per second have their own section
    hidden = ["series" if alike else "run", "series", "samples_per_s", "samples_per_s_per_worker"]
    hidden += ["doubt", "base_workers"]
    hidden += [name for name in ("precision", "steps", "base") if _is_same(training, name)]
    shown = [name for name in training if name not in hidden]
    figures = plots.over_x(training, x, charts["training"])
    of_several = training if over_workers.has_points(training, x) else training[:0]
    yield "training", of_several, {"figures": figures, "shown": shown}
    # of several runs the settings in which they differ (losses and steps have their own tables,
    # folders are in the data); of one its main ones
    table = frames.overview(subject)
    differing = [name for name in ("state", "seed") if not _is_same(table, name)]
    wanted = {"run", "workers", *differing, *subject.varying}
    shown = [name for name in table if name in wanted]
    yield "runs", table, {"shown": shown if len(table) > 1 else None}
    table = tables.losses(subject)
    figures = plots.losses(table) if len(table) else {}
    more: dict[str, Any] = {"figures": figures, "data": {"losses": table}}
    yield "first_losses", tables.first_losses(subject), more
    table = tables.metrics(subject)
    yield "metrics", tables.evaluated(subject), {"figures": over_epochs(table)}
    table = tables.seconds(subject)
    yield "seconds", table, {"figures": plots.seconds(table) if len(table) else {}}
    # over workers where there are several numbers of them, else bars
    figures = plots.over_x(training, x, charts["throughput"])
    if len(training) > 1 and not figures:
        figures = plots.throughput(training)
    columns = ["run", "precision", "workers", "samples_per_s", "samples_per_s_per_worker"]
    gains = scaling.speedup(subject)
    is_drawn = len(quantities.drawn(gains)) > 0
    table = training.reindex(columns=columns)
    more = {"figures": figures, "shown": _without_same(table, "precision")}
    more["data"] = {"speedup": gains} if len(gains) and not is_drawn else {}
    yield "throughput", table, more
    if is_drawn:  # else each base is in doubt, as the first table's warning says
        more = {"figures": plots.speedup(gains)}
        if not _is_same(gains, "base"):  # one base is named once, under the first table
            names = ["series", "workers", "samples_per_s", "base", "speedup", "efficiency"]
            more["shown"] = names
        yield "speedup", gains, more
    yield "ranks", tables.per_rank(subject), {}
    table = over_workers.evaluation(subject)
    figures = plots.evaluation(table) if len(table) > 1 else {}
    if any(not tables.all_steps(one.run) for one in subject.entries):  # which only evaluate
        figures |= plots.over_x(quantities.drawn(table), x, charts["evaluation"])
    yield "evaluation", table, {"figures": figures}
    table = over_workers.memory(subject)
    figures = plots.memory(table) if len(table) > 1 else {}
    yield "memory", table, {"figures": figures, "shown": _without_same(table, "precision")}
    table = event_tables.traffic(subject)
    yield "traffic", table, _of_traffic(table) if len(table) else {}
    yield "collectives", event_tables.collectives(subject), {}
    yield "balance", event_tables.balance(subject), {}
    yield "drift", event_tables.drift(subject), {}
    yield "checkpoints", event_tables.checkpoints(subject), {}
    restarts = sum(len(entry.run.attempts) for entry in subject.entries)
    lines = [f"Started again {restarts} time(s) in all."] if restarts else []
    yield "failures", event_tables.failures(subject), {"lines": lines}


def _is_same(table: pd.DataFrame, name: str) -> bool:
    """Whether a column says the same in every row."""
    return name in table and table[name].nunique(dropna=False) == 1


def _without_same(table: pd.DataFrame, name: str) -> list[str]:
    """The columns to show: not `name` if it says the same in every row."""
    return [one for one in table if one != name or not _is_same(table, name)]


def over_epochs(metrics: pd.DataFrame) -> dict[str, str]:
    """The figure of metrics, where there are several evaluations."""
    is_line = len(metrics) and (metrics.groupby("run")["step"].nunique() > 1).any()
    return {"metrics": plots.metrics(metrics)} if is_line else {}


def _of_traffic(table: pd.DataFrame) -> dict[str, Any]:
    totals, lines = event_tables.traffic_totals(table), []
    ratios = list(table.loc[table["band"].isin(("inside", "outside")), "ratio"])
    if ratios:
        inside = sum(BAND[0] <= ratio <= BAND[1] for ratio in ratios)
        lines.append(
            f"Counted bytes are {min(ratios):.3f} to {max(ratios):.3f} times the expected ones. "
            f"{inside} of {len(ratios)} measurements are between {BAND[0]:.2f} and {BAND[1]:.2f}, "
            "as they should be."
        )
    lines += [f"Noted while measuring: {note}." for note in table["note"].dropna().unique()]
    figures = plots.traffic(totals) if len(totals) else {}
    return {"lines": lines, "figures": figures, "data": {"traffic_totals": totals}}
