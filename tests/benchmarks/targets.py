"""What the benchmark is to show, as numbers, beside what it did show."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.benchmarks.cases import BASE
from tests.benchmarks.results import Results, Spread


@dataclass(frozen=True)
class Target:
    """The time of `case` is to be at most `most` times that of `base`.

    `faster` says the same as a speed: at least 1 / `most` times the steps per second.
    """

    what: str
    case: str
    most: float
    base: str = BASE
    rate: str | None = None  # where it is meant; None: everywhere
    small: bool = False  # meant for the small model only
    real: bool = False  # meant for a model that was given
    faster: bool = False

    def wanted(self) -> str:
        return f">= {1 / self.most:.2f} x" if self.faster else f"<= {self.most:.2f} x"

    def reached(self, ratios: Sequence[float]) -> Spread:
        return Spread.of([1 / ratio for ratio in ratios] if self.faster else ratios)

    def verdict(self, reached: Spread) -> str:
        """Whether it is met, and whether one would say so of another such measurement."""
        limit = 1 / self.most if self.faster else self.most
        met = reached.mean >= limit if self.faster else reached.mean <= limit
        unsure = abs(reached.mean - limit) < reached.deviation
        return ("met" if met else "missed") + (", but within the spread" if unsure else "")

    def applies(self, results: Results, model: str) -> bool:
        """Whether these results can say anything about it."""
        measured = {self.case, self.base} <= results.runs.keys()
        right_model = not self.real if model == "small" else not self.small
        return measured and right_model and self.rate in (None, results.rate)


TARGETS = (
    Target("all_reduce is never slower than DDP, all else alike", "all_reduce", 1.0, base="ddp"),
    Target("all_reduce is never slower than DDP by hand, on as many tokens",
           "all_reduce_padded", 1.0),
    Target("sparse rows on the small model", "all_reduce", 0.38, rate="1gbit", small=True),
    Target("gather_scatter beside its textbook loop, on as many tokens",
           "gather_scatter_padded", 0.5, base="loop_gather_scatter"),
    Target("RTE's recipe with --sync all_reduce beside DDP by hand, steps per second",
           "all_reduce", 1 / 1.7, real=True, faster=True),
)  # fmt: skip


def table(found: Iterable[Results], model: str) -> list[list[str]]:
    """A row for each target and rate that says something about it, the head first."""
    rows = [["target", "rate", "wanted", "reached", ""]]
    for results in found:
        for target in TARGETS:
            if not target.applies(results, model):
                continue
            ratios = results.ratios(target.case, target.base)
            reached = target.reached(ratios)
            if results.same_loss(target.case) and results.same_loss(target.base):
                verdict = target.verdict(reached)
            else:
                verdict = "missed: other loss"
            rows.append([target.what, results.rate, target.wanted(), reached.text(2), verdict])
    return rows
