"""Turn seconds into ratios, round by round: in each round, every case has run once."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

import numpy as np

from launch.virtual_cluster.virtual_nodes import rate_bits
from tests.benchmarks.cases import BASE, Case
from tests.benchmarks.places import Steps

WARM_UP = 2  # number of first steps of each run, which are left out
COMPARED = 10  # number of first losses that are compared
SAME_LOSS = 1e-4
WIRE = 1538 / 1448  # bytes on the wire per byte of payload, with packets of 1500 bytes


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean over the rounds and the standard deviation."""
    return f"{fmean(values):.{digits}f} ± {deviation(values):.{digits}f}"


def deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


@dataclass
class Results:
    """All runs at one rate, by the name of the case, in the order of the rounds."""

    rate: str
    runs: dict[str, list[Steps]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, str] = field(default_factory=dict)  # why, by the name of the case

    def seconds(self, name: str) -> list[float]:
        """Return the median seconds per step of each round."""
        return [median(run.step_s[WARM_UP:]) for run in self.runs[name]]

    def ratios(self, name: str, base: str) -> list[float]:
        """Return the ratio of the seconds of `name` to `base`'s, in each round that has both."""
        pairs = zip(self.seconds(name), self.seconds(base), strict=False)
        return [own / other for own, other in pairs]

    def loss_gap(self, case: Case) -> float:
        """Return the largest difference between a first loss and the base's, in any round."""
        own, (base, *_) = (
            [run.losses[:COMPARED] for run in self.runs[name]] for name in (case.name, case.base)
        )
        return float(np.abs(np.subtract(own, base)).max())

    def same_loss(self, case: Case) -> bool:
        """Whether the case has the losses of its base, so that its speed counts."""
        return self.loss_gap(case) <= SAME_LOSS  # False for NaN


def bounds(gradient_bytes: int, workers: int, rate: str) -> dict[str, float]:
    """Return the seconds that the gradients of a step need on links that carry nothing else.

    A ring sends and receives 2 (N-1)/N of the gradients on each link; a root receives the gradients
    of all others, and at the same time sends as many back.
    """
    if not (bits := rate_bits(rate)):
        return {}
    whole_s = gradient_bytes * WIRE / (bits / 8)
    ring_s = 2 * (workers - 1) / workers * whole_s
    return {"a ring's links": ring_s, "a root's link": (workers - 1) * whole_s}


def table(
    results: Results, cases: Sequence[Case], limits: dict[str, float]
) -> list[dict[str, str]]:
    """Return a row for each case, and for the least time that the links need."""
    rows = []
    for case in cases:
        if case.name in results.failed:
            continue
        seconds, ratios = results.seconds(case.name), results.ratios(case.name, case.base)
        note = "" if results.same_loss(case) else "other loss: does not count"
        rows.append(
            {
                "case": case.name,
                "step, s": spread(seconds),
                "x DDP by hand": spread(ratios, 2),
                "loss differs by": f"{results.loss_gap(case):.0e}",
                "note": "limit" if case.limit else note,
            }
        )
    base_s = fmean(results.seconds(BASE))
    for name, limit_s in limits.items():
        row = {"case": name, "step, s": f"{limit_s:.3f}", "note": "limit, computed"}
        rows.append({**row, "x DDP by hand": f"{limit_s / base_s:.2f}", "loss differs by": ""})
    return rows


def held(
    what: str, values: Sequence[float], most: float | None, unit: str = "x", note: str = ""
) -> dict[str, str]:
    """Return a row of the targets table: whether the mean is at most `most`, beyond the spread."""
    row = {"what": what, "rate": "", "wanted": "", "reached": f"{spread(values, 2)} {unit}{note}"}
    verdict = ""
    if most is not None:
        row["wanted"] = f"<= {most:.2f} {unit}"
        verdict = "met" if fmean(values) <= most else "missed"
        if abs(fmean(values) - most) < deviation(values):
            verdict += ", but within the spread"
    return {**row, "verdict": verdict}
