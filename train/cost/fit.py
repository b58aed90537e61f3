"""Latency and bandwidth from the bench of collectives, seconds per sample from a run's steps.

How it works: a collective of S bytes among N workers is k messages that follow each other and b
bytes on the busiest link (`algorithms`), and so takes t(S) = k alpha + b beta: Hockney's model (R.
W. Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994), with the latency
alpha of a message and beta = 1 / bandwidth. The bench measures t for several S. alpha and beta are
those that minimise sum(w_i^2 (t(S_i) / t_i - 1)^2): each row of the linear least squares is divided
by its t_i, so that a short time counts as much as a long one, and weighted by how well the rounds
of its measurement agree. Neither may be negative (NNLS: Lawson and Hanson, "Solving Least Squares
Problems", 1974). With `overlap` p = 2, t^p = (k alpha)^p + (b beta)^p is fitted in the same way,
linear in alpha^p and beta^p, and taken where it fits clearly better. Standard errors are those of
linear regression, sigma^2 (X^T X)^-1, carried over to alpha and beta by their derivatives.
Computing is fitted by the same `line`: a constant and seconds per sample.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import nnls

from muster.errors import UsageError
from train.cost.algorithms import MEASURED, Link, payload_share

TINY_S = 1e-12  # so that nothing is divided by 0
TINY = 1e-300
# p: latency and bandwidth add up (1), or overlap (2).
OVERLAPS = (1.0, 2.0)
CLEARLY = 0.9  # p = 2 is taken where its error is below this part of the sum's
NOISE = 0.05  # between rounds: below it no point is better than another
# What stands in for a collective that the bench left out, the nearest kin first.
KIN = {
    "gather": ("scatter", "sendrecv"),
    "scatter": ("gather", "sendrecv"),
    "all_reduce": ("all_gather", "sendrecv"),
    "all_gather": ("all_reduce", "sendrecv"),
}


@dataclass(frozen=True)
class Line:
    """y = start + rise * x with the standard errors of both, as far as the points tell."""

    start: float
    start_se: float
    rise: float
    rise_se: float
    relative_error: float  # root mean square of the points' distances, by their trust


@dataclass(frozen=True)
class LinkFit:
    """One link, by one collective."""

    link: Link
    alpha_se_s: float
    bytes_per_s_se: float
    points: int
    relative_error: float

    def facts(self) -> dict[str, Any]:
        """For prediction.json."""
        raw = asdict(self)
        return {**raw.pop("link"), **raw}


@dataclass(frozen=True)
class Bench:
    """What a collectives.json says, fitted."""

    workers: int
    nodes: int
    backend: str
    mtu_bytes: int
    interface: str
    fits: Mapping[str, LinkFit]
    note: str = ""  # what is not as it was measured

    def of(self, operation: str) -> LinkFit:
        """The link as `operation`, or its nearest kin, sees it."""
        for name in (operation, *KIN.get(operation, ())):
            if name in self.fits:
                return self.fits[name]
        return next(iter(self.fits.values()))

    def at_rate(self, mbit_s: float) -> "Bench":
        """The same workers with links of that speed, headers included, and the latency they had."""
        fits = {}
        for name, fit in self.fits.items():
            rate = Link.of_rate(mbit_s * 1e6, self.mtu_bytes, fit.link.alpha_s)
            link = replace(rate, overlap=fit.link.overlap)
            fits[name] = replace(fit, link=link, bytes_per_s_se=0.0)
        return replace(self, fits=fits, note=f"links of {mbit_s:g} Mbit/s, not those measured")

    def wire_mbit_s(self, operation: str) -> float:
        """Mbit/s that the link carries, headers included."""
        return self.of(operation).link.bytes_per_s * 8e-6 / payload_share(self.mtu_bytes)


@dataclass(frozen=True)
class ComputePoint:
    """One step of the rank that computed longest in it."""

    workers: int
    samples: int
    data_s: float
    forward_s: float
    backward_s: float
    rest_s: float  # optimizer, and what no phase accounts for

    @property
    def samples_s(self) -> float:
        return self.data_s + self.forward_s + self.backward_s


@dataclass(frozen=True)
class ComputeFit:
    """Seconds of one rank's step apart from the sync: constant_s + per_sample_s * n."""

    constant_s: float
    per_sample_s: float
    per_sample_se_s: float
    backward_share: float  # of what grows with the samples
    points: int
    sizes: tuple[int, ...]  # samples per step that were seen

    def seconds(self, samples: float) -> float:
        return self.constant_s + self.per_sample_s * samples

    def backward_s(self, samples: float) -> float:
        return self.per_sample_s * samples * self.backward_share


def line(
    weights: Sequence[tuple[float, float]],
    seconds: Sequence[float],
    power: float = 1.0,
    trust: Sequence[float] | None = None,
) -> Line:
    """The (start, rise) for which `seconds` is w0 * start + w1 * rise, neither below zero.

    With `power` p it is their p-norm. Relative errors count, not absolute ones: a short time is as
    telling as a long one. The errors of what has more `trust` count so much more.
    """
    times = np.asarray(seconds, dtype=float)
    # (points, 2), the p-th power of what each weight adds to a time: linear in start^p and rise^p
    scaled = (np.asarray(weights, dtype=float) / times[:, None]) ** power
    trusted = np.ones(len(times)) if trust is None else np.asarray(trust, dtype=float)
    trusted /= np.sqrt(np.mean(trusted**2))
    scale = np.linalg.norm(scaled, axis=0)
    scale[scale == 0] = 1.0
    rows = scaled / scale * trusted[:, None]
    found, _ = nnls(rows, trusted)
    left = rows @ found - trusted
    freedom = max(1, len(times) - 2)
    covariance = np.linalg.pinv(rows.T @ rows) * (left @ left / freedom)
    errors = np.sqrt(np.clip(np.diag(covariance), 0, None)) / scale
    powers = found / scale
    start, rise = powers ** (1 / power)
    # d(start) = d(start^p) start / (p start^p), and likewise for rise
    errors *= np.where(powers > 0, np.asarray([start, rise]) / np.maximum(powers, TINY), 1) / power
    predicted = (scaled @ powers) ** (1 / power)
    return Line(
        float(start),
        float(errors[0]),
        float(rise),
        float(errors[1]),
        float(np.sqrt(np.mean((trusted * (predicted - 1)) ** 2))),
    )


def fit_link(operation: str, rows: Sequence[tuple[float, float, float]], workers: int) -> LinkFit:
    """Latency and bandwidth of one collective among `workers`.

    Each of `rows` has bytes, mean seconds, and those of the fastest round: the farther apart these
    two, the less the point counts.
    """
    loads = [MEASURED[operation](size, workers) for size, _, _ in rows]
    weights = [(load.messages, load.payload_bytes) for load in loads]
    seconds = [mean for _, mean, _ in rows]
    trust = [1 / max(NOISE, 1 - fastest / mean) for _, mean, fastest in rows]
    lines = {power: line(weights, seconds, power, trust) for power in OVERLAPS}
    overlap = min(OVERLAPS, key=lambda p: lines[p].relative_error * (CLEARLY if p == 1 else 1))
    found = lines[overlap]
    per_byte_s = max(found.rise, TINY_S)
    return LinkFit(
        Link(found.start, 1 / per_byte_s, overlap),
        found.start_se,
        found.rise_se / per_byte_s**2,
        len(rows),
        found.relative_error,
    )


def fit_bench(raw: Mapping[str, Any], where: str) -> Bench:
    """Each collective of a collectives.json.

    Raises:
        UsageError: it holds nothing to fit to; names `where`.
    """
    try:
        workers = len(raw["hosts"])
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for row in raw["collectives"]:
            if row["name"] in MEASURED and row["time_us"] > 0:
                mean_s, fastest_s = row["time_us"] / 1e6, row["time_us_min"] / 1e6
                rows.setdefault(row["name"], []).append((float(row["bytes"]), mean_s, fastest_s))
        links = list(raw["links"].values())
        nodes, backend = len(set(raw["nodes"])), str(raw["backend"])
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{where}: not a collectives.json ({type(error).__name__}: {error}); make one with "
            "--program bench_collectives"
        ) from None
    fits = {name: fit_link(name, found, workers) for name, found in rows.items() if len(found) > 1}
    if workers < 2 or not fits:
        raise UsageError(
            f"{where}: {workers} workers and no collective of two sizes; latency and bandwidth "
            "need both: --program bench_collectives --nodes 2"
        )
    return Bench(
        workers=workers,
        nodes=nodes,
        backend=backend,
        mtu_bytes=min((one.get("mtu_bytes") or 1500 for one in links), default=1500),
        interface=", ".join(sorted({str(one.get("interface")) for one in links})),
        fits=fits,
    )


def fit_compute(points: Sequence[ComputePoint]) -> ComputeFit:
    """The line through the steps; where all have one size, it starts at what no sample causes."""
    sizes = tuple(sorted({point.samples for point in points}))
    rest_s = fmean(point.rest_s for point in points)
    total_s = math.fsum(point.samples_s for point in points)
    backward_s = math.fsum(point.backward_s for point in points)
    if len(sizes) > 1:
        found = line(
            [(1.0, point.samples) for point in points],
            [max(point.samples_s, TINY_S) for point in points],
        )
        start_s, rise_s, error_s = found.start, found.rise, found.rise_se
    else:
        each = [point.samples_s / max(1, point.samples) for point in points]
        start_s, rise_s = 0.0, fmean(each)
        error_s = float(np.std(each, ddof=1) / math.sqrt(len(each))) if len(each) > 1 else 0.0
    return ComputeFit(
        constant_s=rest_s + start_s,
        per_sample_s=rise_s,
        per_sample_se_s=error_s,
        backward_share=backward_s / total_s if total_s > 0 else 0.0,
        points=len(points),
        sizes=sizes,
    )
