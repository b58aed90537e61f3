"""Turn a subject into the sections of its report: a table each, figures, and counts.

The titles and texts of sections are in sections.yaml.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from train.report.data import event_tables, over_workers, quantities, scaling, tables
from train.report.data.event_tables import BAND
from train.report.data.subject import Subject
from train.report.pages import plots, verdict

SHORT = 12  # the most rows of a table in the body of the report
TEXTS = Path(__file__).with_name("sections.yaml")
# Columns that name the rows of a table, or what its numbers refer to.
NAMING = frozenset("run series label workers precision epoch step steps rank samples".split())
# Columns of "What was run" for any run, before the settings in which runs differ.
MAIN = "run folder state task sync workers nodes batch_size precision seed steps".split()
Charts = Mapping[str, tuple[str, str]]  # a column and the label of its axis, by the figure's name
Content = dict[str, Any]  # of a section: its table, and other fields that are not in the YAML


@dataclass
class Section:
    """One part of the report; `figures` are SVGs in the page's colour, by name."""

    name: str  # of its data
    table: pd.DataFrame
    title: str
    text: str = ""
    lines: list[str] = field(default_factory=list)  # above the table
    figures: dict[str, str] = field(default_factory=dict)
    shown: list[str] | None = None  # columns of the table in the page; None: all of them
    data: dict[str, pd.DataFrame] = field(default_factory=dict)  # written beside the page
    longest: int = 60  # rows in the page; the data has all of them
    in_appendix: bool = False  # the table; figures and lines stay in the body
    is_folded: bool = False  # table and text of a single run, whose page is short

    @property
    def has_table(self) -> bool:
        """Whether the page shows the table; otherwise, only the data has it."""
        return self.shown != []

    @property
    def is_on_page(self) -> bool:
        return bool(self.has_table or self.figures or self.lines)

    @property
    def rows(self) -> pd.DataFrame:
        """The rows on the page: the first rows of every run, at most `longest` in total."""
        table = quantities.without_doubted(self.table.reset_index(drop=True))
        number_in_run = table.groupby(table.columns[0], dropna=False).cumcount()
        first = number_in_run.sort_values(kind="stable").index[: self.longest]
        return table.loc[first.sort_values()]

    @property
    def more_rows(self) -> int:
        """How many rows are only in the data."""
        return max(0, len(self.table) - self.longest)


def build(subject: Subject) -> list[Section]:
    """The sections for which there are records, in reading order."""
    parts, is_one = [], len(subject.entries) == 1
    for name, text in yaml.safe_load(TEXTS.read_text(encoding="utf-8")).items():
        content = CONTENTS[name](subject, text.pop("charts", {}))
        of_several = text.pop("of_several", "")
        if of_several and not is_one:
            text["text"] = f"{text.get('text', '')} {of_several}".strip()
        parts.append(Section(**{"name": name} | text | content))
    parts = [part for part in parts if len(part.table)]
    _show_once(parts, verdict.build(subject).table)
    for part in parts:
        part.is_folded = is_one and part.name != "failures"
        part.in_appendix = part.has_table and (len(part.table) > SHORT or part.is_folded)
    return parts


def _show_once(parts: Iterable[Section], first: pd.DataFrame) -> None:
    """Hide columns whose numbers an earlier section or the report's first table already shows.

    A table is hidden entirely if only the columns that name its rows are left.
    """
    seen: dict[str, pd.Series] = {}
    for part in [Section("first", first, ""), *parts]:
        table = quantities.without_doubted(part.table)
        shown = list(table) if part.shown is None else part.shown
        if "run" not in table or not table["run"].is_unique:
            continue  # it has several rows for a run, unlike any other table
        of_runs = table.set_index("run", drop=False)
        new = [
            name
            for name in shown
            if name in NAMING or name not in seen or not _agree(of_runs[name], seen[name])
        ]
        part.shown = new if set(new) - NAMING else []
        seen |= {name: of_runs[name] for name in shown}


def _agree(column: pd.Series, other: pd.Series) -> bool:
    """Whether all runs of `column` have the same values in `other`."""
    if not column.index.isin(other.index).all():
        return False
    pairs = zip(column, other.reindex(column.index), strict=True)
    return all(
        one == two if pd.notna(one) and pd.notna(two) else pd.isna(one) and pd.isna(two)
        for one, two in pairs
    )


def _training(subject: Subject, charts: Charts) -> Content:
    table, x = over_workers.training(subject), subject.roles.x
    if not over_workers.has_points(table, x):
        return {"table": table[:0]}
    repeated = table.duplicated(["workers", "precision", "batch_of_each"]).any()
    # samples per second have their own section
    hidden = [
        "series" if repeated else "run",
        "series",
        "samples_per_s",
        "samples_per_s_per_worker",
    ]
    hidden += ["doubt"]
    hidden += [name for name in ("precision", "steps", "base") if _is_same(table, name)]
    shown = [name for name in table if name not in hidden]
    return {"table": table, "figures": plots.over_x(table, x, charts), "shown": shown}


def _runs(subject: Subject, charts: Charts) -> Content:
    """Each run's main settings, those in which runs differ, and how it ended."""
    wanted = [*MAIN, *subject.varying, "last_batch_loss"]
    table = subject.runs.reindex(columns=list(dict.fromkeys(wanted)))
    # of several runs, only settings that differ are shown: losses and steps have their own tables
    differing = [name for name in ("state", "seed") if not _is_same(table, name)]
    shown = [
        column for column in table if column in {"run", "workers", *differing, *subject.varying}
    ]
    if len(table) == 1:  # the first table, if there is one, and the settings have it all
        return {"table": table, "shown": None if table["last_batch_loss"].isna().all() else []}
    return {"table": table, "shown": shown}


def _losses(subject: Subject, charts: Charts) -> Content:
    table = subject.losses
    figures = plots.losses(table) if len(table) else {}
    return {"table": tables.first_losses(subject), "figures": figures, "data": {"losses": table}}


def _metrics(subject: Subject, charts: Charts) -> Content:
    return {"table": tables.evaluated(subject), "figures": over_epochs(tables.metrics(subject))}


def _seconds(subject: Subject, charts: Charts) -> Content:
    table = tables.seconds(subject)
    return {"table": table, "figures": plots.seconds(table) if len(table) else {}}


def _throughput(subject: Subject, charts: Charts) -> Content:
    """Plot throughput over x if there are several values of x, or else as bars."""
    training = over_workers.training(subject)
    figures = plots.over_x(training, subject.roles.x, charts)
    if len(training) > 1 and not figures:
        figures = plots.throughput(training)
    columns = ["run", "precision", "workers", "samples_per_s", "samples_per_s_per_worker"]
    table, gains = training[columns], scaling.speedup(subject)
    has_section = len(quantities.with_origin(gains)) > 0
    data = {"speedup": gains} if len(gains) and not has_section else {}
    shown = _without_same(table, "precision")
    return {"table": table, "figures": figures, "shown": shown, "data": data}


def _speedup(subject: Subject, charts: Charts) -> Content:
    table = scaling.speedup(subject)
    if not len(
        quantities.with_origin(table)
    ):  # each base is in doubt, as the first table's warning says
        return {"table": table[:0]}
    content: Content = {"table": table, "figures": plots.speedup(table)}
    if not _is_same(table, "base"):  # one base is named once, under the first table
        names = ["series", "workers", "samples_per_s", "base", "speedup", "efficiency"]
        content["shown"] = names
    return content


def _evaluation(subject: Subject, charts: Charts) -> Content:
    table = over_workers.evaluation(subject)
    figures = plots.evaluation(table) if len(table) > 1 else {}
    if subject.runs["steps"].isna().any():  # some runs only evaluate
        figures |= plots.over_x(quantities.with_origin(table), subject.roles.x, charts)
    return {"table": table, "figures": figures}


def _memory(subject: Subject, charts: Charts) -> Content:
    table = over_workers.memory(subject)
    figures = plots.memory(table) if len(table) > 1 else {}
    return {"table": table, "figures": figures, "shown": _without_same(table, "precision")}


def _traffic(subject: Subject, charts: Charts) -> Content:
    table = event_tables.traffic(subject)
    totals, lines = event_tables.traffic_totals(table), []
    ratios = table.loc[table["band"].isin(("inside", "outside")), "ratio"]
    if len(ratios):
        lines.append(
            f"The counted bytes are {ratios.min():.3f} to {ratios.max():.3f} times the expected "
            f"bytes. {ratios.between(*BAND).sum()} of {len(ratios)} measurements are within the "
            f"valid range, {BAND[0]:.2f} to {BAND[1]:.2f}."
        )
    lines += [f"Note from the measurement: {note}." for note in table["note"].dropna().unique()]
    figures = plots.traffic(totals) if len(totals) else {}
    return {"table": table, "lines": lines, "figures": figures, "data": {"traffic_totals": totals}}


def _failures(subject: Subject, charts: Charts) -> Content:
    restarts = sum(len(entry.run.attempts) for entry in subject.entries)
    lines = [f"Restarts in total: {restarts}."] if restarts else []
    return {"table": event_tables.failures(subject), "lines": lines}


def _alone(table: Callable[[Subject], pd.DataFrame]) -> Callable[[Subject, Charts], Content]:
    """Make a section that has only a table."""
    return lambda subject, charts: {"table": table(subject)}


# By the names in sections.yaml.
CONTENTS: Mapping[str, Callable[[Subject, Charts], Content]] = {
    "training": _training,
    "runs": _runs,
    "first_losses": _losses,
    "metrics": _metrics,
    "seconds": _seconds,
    "throughput": _throughput,
    "speedup": _speedup,
    "ranks": _alone(tables.per_rank),
    "evaluation": _evaluation,
    "memory": _memory,
    "traffic": _traffic,
    "collectives": _alone(event_tables.collectives),
    "balance": _alone(event_tables.balance),
    "drift": _alone(event_tables.drift),
    "checkpoints": _alone(event_tables.checkpoints),
    "failures": _failures,
}


def _is_same(table: pd.DataFrame, name: str) -> bool:
    """Whether a column has the same value in every row."""
    return name in table and table[name].nunique(dropna=False) == 1


def _without_same(table: pd.DataFrame, name: str) -> list[str]:
    """The columns to show: all, but not `name` if it has the same value in every row."""
    return [column for column in table if column != name or not _is_same(table, name)]


def over_epochs(metrics: pd.DataFrame) -> dict[str, str]:
    """The figure of metrics, if there are several evaluations."""
    is_line = len(metrics) and (metrics.groupby("run")["step"].nunique() > 1).any()
    return {"metrics": plots.metrics(metrics)} if is_line else {}
