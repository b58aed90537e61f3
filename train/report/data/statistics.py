"""Measured seconds become a mean with its spread and a 95 % confidence interval."""

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Of `count` values, in their unit; the interval is None where one value alone is known."""

    count: int
    mean: float
    median: float
    spread: float | None  # sample standard deviation
    low: float | None  # of the confidence interval for the mean
    high: float | None

    @property
    def half_width(self) -> float:
        """Half of the confidence interval; 0 where there is none."""
        return 0.0 if self.low is None else self.mean - self.low

    def row(self) -> dict[str, Any]:
        return asdict(self)


def numbers(values: Iterable[Any]) -> list[float]:
    """Those of `values` that are finite numbers."""
    return [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    ]


def estimate(values: Iterable[Any]) -> Estimate | None:
    """Of all numbers among `values`, by Student's t; None where there are none."""
    known = numbers(values)
    if not known:
        return None
    mean, spread, half = statistics.fmean(known), None, None
    if len(known) > 1:
        spread = statistics.stdev(known)
        half = quantile(len(known) - 1) * spread / math.sqrt(len(known))
    return Estimate(
        count=len(known),
        mean=mean,
        median=statistics.median(known),
        spread=spread,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
    )


def quantile(degrees: int) -> float:
    """Student's t for a two-sided interval with `degrees` of freedom."""
    from scipy import special

    return float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2))
