"""What a step costs each rank, and the split that makes the slowest rank fastest.

A rank computes n samples in alpha + beta n seconds. Every system that fits such curves does so
from a few batch sizes (Cannikin, AdaptDL, Poplar); the split is then water-filling: all ranks that
get samples end at the same time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..plan import split_batch

POINT_S = 1e-9  # below any step: a rank cannot be infinitely fast
# A new split must promise so much over the one there is: speeds always waver a little.
DEAD_BAND = 1.05


@dataclass(frozen=True)
class Cost:
    """Seconds that one rank computes in a step over n samples: alpha_s + beta_s * n."""

    alpha_s: float
    beta_s: float

    def of(self, samples: float) -> float:
        """Seconds for that many; a rank without samples computes a dummy, which is one."""
        return self.alpha_s + self.beta_s * max(1.0, samples)

    def scaled(self, factor: float) -> "Cost":
        return Cost(self.alpha_s * factor, self.beta_s * factor)


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Cost:
    """The line through measured times, by least squares; neither part is below zero.

    Relative errors count, not absolute ones: a short time is as telling as a long one.
    """
    weights = [1.0 / max(one, POINT_S) ** 2 for one in seconds]
    total = math.fsum(weights)
    n = math.fsum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    t = math.fsum(w * y for w, y in zip(weights, seconds, strict=True)) / total
    spread = math.fsum(w * (x - n) ** 2 for w, x in zip(weights, sizes, strict=True))
    rise = math.fsum(w * (x - n) * (y - t) for w, x, y in zip(weights, sizes, seconds, strict=True))
    beta = rise / spread if spread > 0 else t / n
    beta = min(max(beta, POINT_S), t / n)  # through the origin at most
    return Cost(max(0.0, t - beta * n), beta)


def best_weights(costs: Sequence[Cost], batch_size: int) -> tuple[float, ...]:
    """Samples of each rank, not rounded, so that the slowest is as fast as can be; they sum to M.

    The time T at which all end solves sum of max(0, (T - alpha) / beta) = M.
    """
    by_start = sorted(costs, key=lambda cost: cost.alpha_s)
    end_s = 0.0
    for count in range(1, len(by_start) + 1):
        # the `count` ranks that are ready first take part
        rate = math.fsum(1 / cost.beta_s for cost in by_start[:count])
        ahead = math.fsum(cost.alpha_s / cost.beta_s for cost in by_start[:count])
        end_s = (batch_size + ahead) / rate
        if count == len(by_start) or end_s <= by_start[count].alpha_s:
            break
    return tuple(max(0.0, (end_s - cost.alpha_s) / cost.beta_s) for cost in costs)


def compute_s(costs: Sequence[Cost], weights: Sequence[float], batch_size: int) -> float:
    """Seconds until the slowest rank has computed its part of a batch that is cut by `weights`."""
    parts = split_batch(batch_size, weights)
    return max(cost.of(part) for cost, part in zip(costs, parts, strict=True))


def memory_limit(
    sizes: Sequence[float], used_bytes: Sequence[float], free_bytes: float, share: float = 0.8
) -> int:
    """Samples that fit at a time, from what a few sizes took; 0: any number seems to.

    Nothing is tried out that might not fit: the line through the measured sizes is followed up.
    """
    (first, *_, last), (low, *_, high) = sizes, used_bytes
    slope = (high - low) / (last - first) if last > first else 0.0
    if slope <= 0:
        return 0
    return max(1, int((free_bytes * share - (low - slope * first)) / slope))
