"""The columns of a report, and which of them are its x, its series and its repeats.

A report is made from two tables: `runs` has a row for each run, `steps` a row for each step of each
rank. Both have these columns, by which the tables and figures of a report are grouped:

    run      the name of the run in the report
    label    what its repeats have in common: the series and x. A row of a table is for one label
    series   what all points of a line have in common
    repeat   the number of the repeat

All other columns are settings; `runs` also has results, and `steps` the fields of the record. The
learning rate of a step is `scheduled_lr`, because `lr` is the setting. Three columns follow from
settings: `name` is the name of the entry in a study's grid, `workers` the number of workers, and
`batch_of_each` the batch size of each worker.

A study's file defines which column is x, which columns distinguish series, and which run is the
reference. Without it, x is `workers`; series are distinguished by their names, and runs of the same
name by the settings in which they differ. Runs that differ only in the seed are repeats.

The reference is the run whose losses the others should have, and to whose samples per second their
speed-up is relative. If a study's `reference` selects several runs, losses are compared with the
run of the same seed and the same x, if there is one, and speed-ups with the run on the fewest
workers. Without a `reference`, losses are compared with the run with `sync` single, or else with
the first run, among those with the same `SAME_LOSSES`; speed-ups are relative to the run on the
fewest workers among those with the same `SAME_WORK`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from configs.settings.launch import LaunchConfig, RunConfig
from configs.settings.remote import SlurmConfig, SshConfig
from configs.settings.train import BenchConfig, TrainConfig
from train.report.data.reader import Row, Run, numbers

NAME_COLUMN = "name"
WORKERS = "workers"
WIDTH = frozenset({WORKERS, "nodes", "nproc_per_node"})
BATCH = frozenset({"batch_size", "batch_of_each"})  # these follow from local_batch_size
# Settings of a study's testbed: the rate of its links, and how many nodes are busy.
TESTBED_SETTINGS = frozenset({"rate", "busy"})
SAME_LOSSES = ("task", "model", "batch_size", "precision", "optimizer", "lr", "dropout", "seed")
SAME_WORK = ("task", "model", "max_seq_length", "precision")  # and the batch
IN_ORDER = ("single", "gather_scatter", "all_reduce", "ddp", "accelerate", "zero1", "fsdp")
ORDER = ("task", "sync", "batch_size", "local_batch_size", "precision", "", WORKERS, "nodes")


@dataclass
class Entry:
    """One run, with its settings and its names in the report."""

    run: Run
    settings: Row
    title: str = ""  # given by the study
    series: str = ""
    label: str = ""
    name: str = ""  # the label, with a number if there are repeats
    repeat: int = 0

    @property
    def sync(self) -> str:
        return str(self.settings.get("sync") or "?")

    @property
    def workers(self) -> int:
        return int(self.settings[WORKERS])

    def value(self, column: str) -> Any:
        """The value of this run in a column of settings."""
        return self.title if column == NAME_COLUMN else self.settings.get(column)


@dataclass(frozen=True)
class Roles:
    """The columns that have a role in a study; None if its file does not name them."""

    x: str = WORKERS
    series: tuple[str, ...] | None = None
    reference: Row = field(default_factory=dict)  # values of the columns that select it

    def named(self) -> list[str]:
        return [self.x, *(self.series or ()), *self.reference]

    @property
    def along_x(self) -> frozenset[str]:
        """The columns that may change with x within one series."""
        return WIDTH | {"batch_of_each"} if self.x in WIDTH else frozenset({self.x})


def tell_apart(entries: list[Entry], roles: Roles) -> None:
    """Give each entry its series, label and name, and sort the entries as in a report."""
    for entry in entries:
        _label(entry, entries, roles)
    for group in by_label(entries).values():  # of entries that x and series do not tell apart
        differing = varying_of(group, roles)
        for entry in group:
            entry.label = _text(entry, differing, entry.label)
            entry.series = _text(entry, [key for key in differing if key != roles.x], entry.series)
    for entry in entries:
        plain = entry.run.name if entry.run.is_foreign else entry.sync
        entry.series = entry.series or plain
        entry.label = entry.label or plain
    for label, group in by_label(entries).items():
        _number(label, group)
    _sort(entries, roles)


def _label(entry: Entry, entries: list[Entry], roles: Roles) -> None:
    """Set the entry's series and its label (the series and x) from the columns of the study."""
    has_names = roles.series is None or NAME_COLUMN in roles.series
    title = entry.title if has_names else ""
    group = [other for other in entries if other.title == title] if title else entries
    differing = varying_of(group, roles)
    if roles.series is None:
        columns = [key for key in differing if key not in roles.along_x]
    else:
        columns = [key for key in roles.series if key in differing]
    along_x = [roles.x] if roles.x in differing else []
    entry.series = _text(entry, columns, title)
    entry.label = ", ".join(filter(None, [entry.series, _text(entry, along_x)]))


def _number(label: str, group: list[Entry]) -> None:
    """Give the repeats of a label their names and numbers, which are the study's if it has any."""
    taken = set[int]()
    for entry in group:
        entry.repeat = next(n for n in count(entry.repeat) if n not in taken)
        taken.add(entry.repeat)
        entry.name = f"{label} #{entry.repeat + 1}" if len(group) > 1 else label


def _sort(entries: list[Entry], roles: Roles) -> None:
    """Sort by the study's order if it names its runs, or else by the settings that differ."""
    if all(entry.title for entry in entries):
        labels = list(by_label(entries))
        entries.sort(key=lambda entry: (labels.index(entry.label), entry.repeat))
    else:
        differing = varying_of(entries, roles)
        entries.sort(key=lambda entry: (_order(entry, differing), entry.repeat))


def by_label(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The repeats of each label."""
    repeats: dict[str, list[Entry]] = {}
    for entry in entries:
        repeats.setdefault(entry.label, []).append(entry)
    return repeats


def varying_of(entries: Sequence[Entry], roles: Roles) -> list[str]:
    """The settings in which the entries differ, in the order in which labels show them."""
    keys = list(dict.fromkeys(key for entry in entries for key in entry.settings))
    differing = [
        key for key in keys if len({repr(entry.settings.get(key)) for entry in entries}) > 1
    ]
    follows = {"seed", "batch_of_each"}
    if WORKERS in differing:
        follows |= WIDTH - {WORKERS}
    if all(entry.settings.get("local_batch_size") for entry in entries):
        follows |= BATCH
    differing = [key for key in differing if key not in follows or key in roles.named()]
    return sorted(differing, key=lambda key: ORDER.index(key if key in ORDER else ""))


def _text(entry: Entry, columns: Iterable[str], before: str = "") -> str:
    parts = [label_part(key, entry) for key in columns if key != NAME_COLUMN]
    return ", ".join(filter(None, [before, *parts]))


def label_part(key: str, entry: Entry) -> str:
    """A setting as a part of a label; empty for a switch at its default."""
    value = entry.settings.get(key)
    plain = key.replace("_size", "").replace("_", " ")
    if value is None or (key in TESTBED_SETTINGS and not value):
        return ""
    if isinstance(value, bool):
        usual = defaults().get(key, False)
        return "" if value is usual else plain if value else f"no {plain}"
    if key in ("sync", "precision", "task", "split"):
        return str(value)
    if key in ("local_batch_size", "batch_of_each"):
        return f"batch {value:g} per worker" if numbers([value]) else f"batch {value} per worker"
    if key in (WORKERS, "nodes"):
        return f"{value} {key[:-1] if value == 1 else key}"
    if isinstance(value, str) and value.startswith("/"):
        value = Path(value).name
    return f"{plain} {value:g}" if isinstance(value, float) else f"{plain} {value}"


def _order(entry: Entry, columns: list[str]) -> list[tuple[int, float, str]]:
    known: list[Any] = [entry.settings.get(key) for key in columns]
    values = [IN_ORDER.index(value) if value in IN_ORDER else value for value in known]
    return [(0, float(value), "") if numbers([value]) else (1, 0.0, str(value)) for value in values]


def selected(entries: Iterable[Entry], roles: Roles) -> list[Entry]:
    """The runs that the study's `reference` selects; none if it has no `reference`."""
    wanted = roles.reference.items()
    return [
        entry
        for entry in entries
        if wanted and all(is_same(entry.value(column), value) for column, value in wanted)
    ]


def is_same(value: Any, wanted: Any) -> bool:
    """Whether a setting has the value that a study's file gives."""
    return value == wanted or str(value) == str(wanted)


def loss_reference(entry: Entry, entries: list[Entry], roles: Roles) -> Entry | None:
    """The run whose losses `entry` should have; None if this is `entry` itself or there is none."""
    with_steps = [other for other in entries if other.run.lead("step") is not None]
    if chosen := selected(with_steps, roles):
        chosen = [
            other for other in chosen if other.settings.get("seed") == entry.settings.get("seed")
        ]
        chosen = chosen or selected(with_steps, roles)
        same_x = [other for other in chosen if other.value(roles.x) == entry.value(roles.x)]
        base = same_x[0] if same_x else min(chosen, key=lambda other: other.workers)
    else:
        group = [
            other
            for other in with_steps
            if values_of(other, SAME_LOSSES) == values_of(entry, SAME_LOSSES)
        ]
        base = min(group or [entry], key=lambda other: other.sync != "single")
    return None if base is entry else base


def values_of(entry: Entry, columns: Iterable[str]) -> tuple[str, ...]:
    """The values in these columns, as texts to compare."""
    return tuple(repr(entry.value(column)) for column in columns)


def is_known(column: str, entries: Sequence[Entry]) -> bool:
    """Whether at least one run has this column."""
    return column == NAME_COLUMN or any(column in entry.settings for entry in entries)


@cache
def defaults() -> dict[str, Any]:
    """The default of every setting, as config.yaml writes it."""
    classes = (LaunchConfig, SshConfig, SlurmConfig, BenchConfig, TrainConfig)
    return {item.name: item.default for settings in classes for item in fields(settings)}


@cache
def training_settings() -> frozenset[str]:
    """The settings of a training, without those of its run folder."""
    of_folder = {item.name for item in fields(RunConfig)}
    return frozenset(item.name for item in fields(TrainConfig)) - of_folder
