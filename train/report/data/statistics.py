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
from typing import Any

CONFIDENCE = 0.95
INTERVAL = ("spread_s", "low_s", "high_s")


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


def estimate(values: Iterable[Any]) -> dict[str, float | None]:
    """Mean and interval of all numbers of seconds among `values`; empty where there are none.

    `spread_s` is the sample standard deviation, `low_s` and `high_s` are the ends of the interval:
    None where one value alone is known.
    """
    known = numbers(values)
    if not known:
        return {}
    center, middle = statistics.fmean(known), statistics.median(known)
    if len(known) == 1:
        return {"mean_s": center, "median_s": middle, **dict.fromkeys(INTERVAL)}
    from scipy import special

    spread = statistics.stdev(known)
    quantile = float(special.stdtrit(len(known) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * spread / math.sqrt(len(known))
    interval = zip(INTERVAL, (spread, center - half, center + half), strict=True)
    return {"mean_s": center, "median_s": middle, **dict(interval)}
