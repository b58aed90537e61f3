"""Estimate a mean from measured seconds, with its spread and a 95 % confidence interval.

How it works: the n values are treated as independent draws from one normal distribution. m is their
mean and s = sqrt(sum((x - m)^2) / (n - 1)) their sample standard deviation. Then the mean of that
distribution lies within m +- t s / sqrt(n) in 95 % of such samples, where t is the 97.5 % quantile
of Student's distribution with n - 1 degrees of freedom (Student, "The probable error of a mean",
Biometrika 6, 1908). The steps of one run are not quite independent: a busy minute slows many of
them, so that their interval is too narrow. The means of repeated runs are independent.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate from `count` values, in their unit; the interval is None for a single value."""

    count: int
    mean: float
    median: float
    spread: float | None  # sample standard deviation
    low: float | None  # of the confidence interval for the mean
    high: float | None

    def columns(self, *names: str) -> dict[str, float | None]:
        """The fields with these names as columns."""
        return {f"{name}_s": getattr(self, name) for name in names}


def numbers(values: Iterable[Any]) -> list[float]:
    """Those of `values` that are finite numbers."""
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]


def mean(values: Iterable[Any]) -> float | None:
    """The mean of all numbers among `values`; None if there are none."""
    known = numbers(values)
    return statistics.fmean(known) if known else None


def estimate(values: Iterable[Any]) -> Estimate | None:
    """Mean and interval of all numbers among `values`; None if there are none."""
    known = numbers(values)
    if not known:
        return None
    center, spread, half = statistics.fmean(known), None, None
    if len(known) > 1:
        from scipy import special

        spread = statistics.stdev(known)
        quantile = float(special.stdtrit(len(known) - 1, (1 + CONFIDENCE) / 2))
        half = quantile * spread / math.sqrt(len(known))
    return Estimate(
        count=len(known),
        mean=center,
        median=statistics.median(known),
        spread=spread,
        low=None if half is None else center - half,
        high=None if half is None else center + half,
    )
