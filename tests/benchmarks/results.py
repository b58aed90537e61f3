"""Seconds become ratios, round by round: in a round every case has run once, in alternation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev

from tests.benchmarks.cases import BASE, Case
from tests.benchmarks.made import Made
from tests.benchmarks.places import Steps

HEAD = ["", "rate", "wanted", "reached", ""]  # of the table of targets
WARM_UP = 2  # first steps of each run, which are left out
COMPARED = 10  # first losses
SAME_LOSS = 1e-4
RING, ROOT = "a ring's links", "a root's link"
WIRE = 1538 / 1448  # bytes on the wire for one of payload, with packets of 1500 bytes


@dataclass(frozen=True)
class Spread:
    """A mean over the rounds, and their standard deviation."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0)

    def text(self, digits: int = 3) -> str:
        return f"{self.mean:.{digits}f} ± {self.deviation:.{digits}f}"


@dataclass
class Results:
    """All runs at one rate, by the name of the case, in the order of the rounds."""

    rate: str
    runs: dict[str, list[Steps]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # why, by the name of the case
    limits: dict[str, float] = field(default_factory=dict)  # seconds that links need at least
    bases: dict[str, str] = field(default_factory=dict)  # of each case

    def add(self, case: Case, steps: Steps) -> None:
        self.runs.setdefault(case.name, []).append(steps)
        self.bases[case.name] = case.base

    def fail(self, case: Case, why: str) -> None:
        """Leave `case` out, whatever it did in earlier rounds."""
        self.runs.pop(case.name, None)
        self.failed[case.name] = why

    def seconds(self, name: str) -> list[float]:
        """The median step of each round."""
        return [median(run.step_s[WARM_UP:]) for run in self.runs[name]]

    def ratios(self, name: str, base: str = "") -> list[float]:
        """Seconds of `name` for one of `base`, or of its own, in each round that has both."""
        pairs = zip(self.seconds(name), self.seconds(base or self.bases[name]), strict=False)
        return [own / other for own, other in pairs]

    def sync_ratios(self, name: str, limit: str) -> list[float]:
        """Seconds of communication, hidden or not, for one that its links need, in each round."""
        return [median(run.sync_s[WARM_UP:]) / self.limits[limit] for run in self.runs[name]]

    def loss_gap(self, name: str) -> float:
        """The largest difference of one of the first losses from its base's, in any round."""
        want = self.runs[self.bases[name]][0].losses[:COMPARED]
        gaps = [
            abs(loss - other)
            for run in self.runs[name]
            for loss, other in zip(run.losses[:COMPARED], want, strict=True)
        ]
        return max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap)

    def same_loss(self, name: str) -> bool:
        """Whether it is the same training, so that its speed counts."""
        return self.loss_gap(name) <= SAME_LOSS  # False for what is not a number


def bounds(made: Made, workers: int, bytes_per_s: float | None) -> dict[str, float]:
    """Seconds that the gradients of a step need on links that do nothing else.

    The ring sends and receives 2 (N-1)/N of the gradients on each link; a root receives those of
    all others, and sends as many back while it does.
    """
    if bytes_per_s is None:
        return {}
    whole_s = made.gradient_bytes * WIRE / bytes_per_s
    return {
        RING: 2 * (workers - 1) / workers * whole_s,
        ROOT: (workers - 1) * whole_s,
    }


def table(results: Results, cases: Sequence[Case]) -> list[list[str]]:
    """The rows of the table, its head first."""
    rows = [["case", "step, s", "x DDP by hand", "loss differs by", "note"]]
    for case in cases:
        if case.name not in results.runs:
            continue
        gap, note = f"{results.loss_gap(case.name):.0e}", ""
        if case.limit:
            note = "limit"
        elif not results.same_loss(case.name):
            note = "other loss: does not count"
        seconds, ratio = Spread.of(results.seconds(case.name)), Spread.of(results.ratios(case.name))
        rows.append([case.name, seconds.text(), ratio.text(2), gap, note])
    base_s = fmean(results.seconds(BASE))
    for name, seconds_s in results.limits.items():
        rows.append([name, f"{seconds_s:.3f}", f"{seconds_s / base_s:.2f}", "", "limit, computed"])
    return rows


def held(
    what: str, values: Sequence[float], most: float | None, unit: str = "x", *, note: str = ""
) -> list[str]:
    """A row of the table of targets: whether they are at most `most`, and would be so again."""
    reached, wanted, verdict = Spread.of(values), "", ""
    if most is not None:
        wanted = f"<= {most:.2f} {unit}"
        verdict = "met" if reached.mean <= most else "missed"
        if abs(reached.mean - most) < reached.deviation:
            verdict += ", but within the spread"
    return [what, "", wanted, f"{reached.text(2)} {unit}{note}", verdict]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """`rows` as text, each column as wide as it needs."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
