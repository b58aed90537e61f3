"""Fit latency and bandwidth of a link to the bench of collectives.

How it works: a collective of S bytes among N workers is k successive messages and b bytes on the
busiest link. So it takes t(S) = k alpha + b beta: Hockney's model (R. W. Hockney, "The
communication challenge for MPP", Parallel Computing 20, 1994), with the latency alpha of a message
and beta = 1 / bandwidth. k and b are those of R. Thakur, R. Rabenseifner and W. Gropp,
"Optimization of collective communication operations in MPICH", 2005. The bench measures t for
several S. alpha and beta minimise sum(w_i^2 (t(S_i) / t_i - 1)^2), so that a short time counts as
much as a long one, weighted by how well the rounds of its measurement agree. Neither is negative
(NNLS: Lawson and Hanson, "Solving Least Squares Problems", 1974). If a message waits while bytes of
others are sent, t^2 = (k alpha)^2 + (b beta)^2 is fitted in the same way, linear in alpha^2 and
beta^2, and used if it fits clearly better. That is true of gloo's collectives.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from muster.errors import UsageError

OPERATIONS = ("all_reduce", "gather", "scatter")  # the collectives of the exact modes
CLEARLY = 0.9  # the fit of squares is used if its error is below this part of the sum's
NOISE = 0.05  # between rounds: below it no point is better than another


@dataclass(frozen=True)
class Link:
    """One worker's link, in each direction."""

    alpha_s: float  # of a message of any length
    byte_s: float  # of a byte of payload
    power: int = 1  # latency and bandwidth add up (1), or overlap (2)

    def shares_s(self, messages: float, payload_bytes: float) -> tuple[float, float]:
        """Seconds of latency and of bandwidth: the larger in full, the other as far as it adds."""
        latency, bandwidth = messages * self.alpha_s, payload_bytes * self.byte_s
        total = (latency**self.power + bandwidth**self.power) ** (1 / self.power)
        return (latency, total - latency) if latency > bandwidth else (total - bandwidth, bandwidth)


def load(operation: str, size_bytes: float, workers: int) -> tuple[float, float]:
    """Messages and bytes on the busiest link; for gather and scatter the size is of all parts.

    all_reduce goes around a ring twice, one part of N at a time. gather and scatter send all other
    workers' parts over the root's single link.
    """
    others = workers - 1
    turns = 2 * others if operation == "all_reduce" else others
    return turns, turns * size_bytes / workers


def fit(operation: str, rows: Sequence[tuple[float, float, float]], workers: int) -> Link:
    """The link as a collective sees it; a row has bytes, the mean seconds and the fastest."""
    times = np.array([mean for _, mean, _ in rows])
    trust = np.array([1 / max(NOISE, 1 - fastest / mean) for _, mean, fastest in rows])
    trust /= np.sqrt(np.mean(trust**2))
    loads = np.array([load(operation, size, workers) for size, _, _ in rows])
    found = []
    for power in (1, 2):
        scaled = (loads / times[:, None]) ** power  # (points, 2)
        scale = np.linalg.norm(scaled, axis=0)
        terms, _ = nnls(scaled / scale * trust[:, None], trust)
        terms /= scale
        misses = trust * ((scaled @ terms) ** (1 / power) - 1)
        alpha_s, byte_s = terms ** (1 / power)
        error = float(np.sqrt(np.mean(misses**2)))
        found.append((error, Link(float(alpha_s), float(byte_s), power)))
    plain, squares = found
    return squares[1] if squares[0] < CLEARLY * plain[0] else plain[1]


def read_bench(path: Path) -> dict[str, Link]:
    """The link as each collective of a collectives.json sees it.

    Raises:
        UsageError: it holds nothing to fit.
    """
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
        workers = len(raw["hosts"])
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for row in raw["collectives"]:
            if row["name"] in OPERATIONS and row["time_us"] > 0:
                point = float(row["bytes"]), row["time_us"] / 1e6, row["time_us_min"] / 1e6
                rows.setdefault(row["name"], []).append(point)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: not a collectives.json ({type(error).__name__}: {error}); make one with "
            "--program bench_collectives"
        ) from None
    several = {name: found for name, found in rows.items() if len(found) > 1 and workers > 1}
    if not several:
        raise UsageError(
            f"{path}: {workers} workers and no collective of two sizes; latency and bandwidth "
            f"need both: --program bench_collectives --nodes 2 --operations {','.join(OPERATIONS)}"
        )
    return {name: fit(name, found, workers) for name, found in several.items()}
