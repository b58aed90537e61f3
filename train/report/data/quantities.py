"""The numbers of a report: estimates and their intervals, units of tables, gains over a run.

Measured seconds become a mean with its spread and a 95 % confidence interval. The n values are
treated as independent draws from one normal distribution; m is their mean and
s = sqrt(sum((x - m)^2) / (n - 1)) their sample standard deviation. Then the mean of that
distribution lies within m +- t s / sqrt(n) in 95 % of such samples, where t is the 97.5 % quantile
of Student's distribution with n - 1 degrees of freedom (Student, "The probable error of a mean",
Biometrika 6, 1908). The steps of one run are not quite independent: a busy minute slows many of
them, so their interval is too narrow. The means of repeated runs are independent.

No interval is given for few values, which reveal little about their distribution, or if it would
reach below zero, which shows that the distribution is not normal.

A base is in doubt if a run's speed-up over it exceeds the ratio of their workers, or if its own
iterations differ widely: something else has probably slowed it down. All gains over it are then in
doubt. They stay in the data of a report, but are not shown.
"""

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from train.report.data.reader import Row, numbers

CONFIDENCE = 0.95
FEWEST_FOR_INTERVAL = 4
MOST_EFFICIENCY = 1.05  # above this, it is more likely that the base was disturbed
GAINS = ("speedup", "efficiency")
ESTIMATE_FIELDS = ("mean_s", "median_s", "spread_s", "low_s", "high_s")
SECONDS = re.compile(r"(?<!per)_s$")
MEMORY = re.compile(r"memory_bytes$")


def estimate(values: Iterable[Any]) -> dict[str, Any]:
    """Estimate the mean and interval of all seconds that are numbers; empty if there are none.

    `spread_s` is the sample standard deviation, and `low_s` and `high_s` are the ends of the
    interval. Each of these is None if it is not given.
    """
    known = numbers(values)
    if not known:
        return {}
    center = statistics.fmean(known)
    found: dict[str, Any] = {"mean_s": center, "median_s": statistics.median(known)}
    found |= dict.fromkeys(("spread_s", "low_s", "high_s"))
    if len(known) > 1:
        found["spread_s"] = statistics.stdev(known)
    if len(known) >= FEWEST_FOR_INTERVAL:
        from scipy import special

        quantile = float(special.stdtrit(len(known) - 1, (1 + CONFIDENCE) / 2))
        half = quantile * found["spread_s"] / math.sqrt(len(known))
        if half <= center:
            found |= {"low_s": center - half, "high_s": center + half}
    return found


def estimates(values: pd.Series) -> pd.DataFrame:
    """Estimate the values of each distinct index entry that has numbers."""
    groups = values.groupby(level=list(range(values.index.nlevels)), sort=False)
    found = [estimate(of_group) for _, of_group in groups]
    table = pd.DataFrame(
        found, index=groups.size().index, columns=list(ESTIMATE_FIELDS), dtype=float
    )
    return table.dropna(subset="mean_s")


def is_uneven(found: Mapping[str, Any]) -> bool:
    """Whether the values of an estimate vary so much that something else may have been running."""
    spread = found.get("spread_s")
    return bool(spread and spread > found["mean_s"] / 2)


class Unit(NamedTuple):
    """The unit in which a column of a table is shown."""

    name: str
    size: float  # in the unit of the data

    @property
    def in_full(self) -> str:
        return {"s": "seconds", "ms": "milliseconds"}.get(self.name, self.name)

    def convert(self, value: Any) -> Any:
        """Convert a number to this unit; return anything else unchanged."""
        return value / self.size if numbers([value]) else value


def unit_of_seconds(values: Iterable[Any]) -> Unit:
    """One unit for all `values`: milliseconds if each is below one second."""
    return Unit("ms", 1e-3) if max(numbers(values), default=1.0) < 1 else Unit("s", 1.0)


def units(columns: Mapping[str, Iterable[Any]]) -> dict[str, Unit]:
    """The units of those columns of a table that need one; all seconds have the same unit."""
    seconds = [name for name in columns if SECONDS.search(name)]
    unit = unit_of_seconds(value for name in seconds for value in columns[name])
    found = dict.fromkeys(seconds, unit)
    return found | {name: Unit("MiB", 2**20) for name in columns if MEMORY.search(name)}


def with_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` of samples per second, with the gains of each run over its `base`.

    The ideal gain is the ratio of their numbers of workers. A run that is its own base has no gain.
    """
    of_base = table.set_index("run").loc[table["base"], ["samples_per_s", "workers"]]
    rate, workers = (of_base[name].astype(float).to_numpy() for name in of_base)
    gain = table["samples_per_s"] / rate
    ideal = table["workers"].astype(float) / workers
    is_other = table["run"] != table["base"]
    gains = {"speedup": gain.where(is_other), "efficiency": (gain / ideal).where(is_other)}
    return table.assign(base_workers=of_base["workers"].to_numpy(), ideal=ideal, **gains)


def with_doubts(table: pd.DataFrame, seconds: Iterable[Row] = ()) -> pd.DataFrame:
    """Return `table` of gains with a column `doubt`: why the base is in doubt, or None if it isn't.

    `seconds` are time estimates of runs, some of which may be bases.
    """
    if not len(table):
        return table
    uneven = "its step times vary widely"
    doubts = {row["run"]: uneven for row in seconds if is_uneven(row)}
    known = table[table["efficiency"].notna()]
    for base, rows in known.groupby("base", sort=False):
        most = max(rows["efficiency"])
        if most > MOST_EFFICIENCY:
            run = rows.loc[rows["efficiency"].astype(float).idxmax(), "run"]
            doubts[str(base)] = f"relative to it, {run} would have an efficiency of {most:.0%}"
    return table.assign(doubt=[doubts.get(base) for base in table["base"]])


def without_doubted(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` of gains as it is shown: gains over a base in doubt are unknown.

    A run that is its own base is shown without a base.
    """
    if "doubt" not in table:
        return table
    shown = [name for name in GAINS if name in table]
    hidden = table["doubt"].notna()
    table = table.assign(**{name: table[name].mask(hidden, None) for name in shown})
    return table.assign(base=table["base"].mask(table["run"] == table["base"], None))


def with_origin(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table` of gains for a line over workers, which begins at 1, the gain of the base."""
    if "doubt" not in table:
        return table
    table = table[table["doubt"].isna()]
    is_base = table["run"] == table["base"]
    shown = [name for name in GAINS if name in table]
    return table.assign(**{name: table[name].mask(is_base, 1.0) for name in shown})


def doubts_of(table: pd.DataFrame) -> dict[str, str]:
    """The bases of `table` that are in doubt, each with the reason."""
    if "doubt" not in table:
        return {}
    doubted = table[table["doubt"].notna()]
    return dict(zip(doubted["base"], doubted["doubt"], strict=True))
