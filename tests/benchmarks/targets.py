"""What the benchmark is to show, as numbers, beside what it did show."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.benchmarks.cases import BASE
from tests.benchmarks.made import SHAPES
from tests.benchmarks.results import ROOT, Results, Spread


@dataclass(frozen=True)
class Target:
    """The time of `case` is to be at most `most` times that of `base`, another case.

    `faster` says the same as a speed: at least 1 / `most` times the steps per second. With `sync`
    it is about communication alone, hidden or not, and `base` is what its links need at least.
    """

    what: str
    case: str
    most: float
    base: str = BASE
    rate: str | None = None  # where it is meant; None: everywhere
    model: str | None = None  # that it is meant for, GIVEN for all but those made here; None: any
    faster: bool = False
    sync: bool = False

    def wanted(self) -> str:
        return f">= {1 / self.most:.2f} x" if self.faster else f"<= {self.most:.2f} x"

    def reached(self, results: Results) -> Spread:
        if self.sync:
            return Spread.of(results.sync_ratios(self.case, self.base))
        ratios = results.ratios(self.case, self.base)
        return Spread.of([1 / ratio for ratio in ratios] if self.faster else ratios)

    def same_loss(self, results: Results) -> bool:
        sides = [self.case] if self.sync else [self.case, self.base]
        return all(map(results.same_loss, sides))

    def verdict(self, reached: Spread) -> str:
        """Whether it is met, and whether one would say so of another such measurement."""
        limit = 1 / self.most if self.faster else self.most
        met = reached.mean >= limit if self.faster else reached.mean <= limit
        unsure = abs(reached.mean - limit) < reached.deviation
        return ("met" if met else "missed") + (", but within the spread" if unsure else "")

    def applies(self, results: Results, model: str) -> bool:
        """Whether these results can say anything about it."""
        measured = {self.case, self.base} <= results.runs.keys() | results.limits.keys()
        meant = self.model in (None, model if model in SHAPES else GIVEN)
        return measured and meant and self.rate in (None, results.rate)


GIVEN = "given"
TARGETS = (
    Target("all_reduce is never slower than DDP, all else alike", "all_reduce", 1.0, base="ddp"),
    Target("all_reduce is never slower than DDP by hand, on as many tokens",
           "all_reduce_padded", 1.0),
    Target("sparse rows on the small model", "all_reduce", 0.38, rate="1gbit", model="small"),
    Target("sparse rows on BERT-base's shape", "all_reduce", 0.82, rate="1gbit", model="base"),
    Target("gather_scatter beside its textbook loop, on as many tokens",
           "gather_scatter_padded", 0.5, base="loop_gather_scatter"),
    Target("gather_scatter's communication beside what the root's link needs",
           "gather_scatter_dense", 1.1, base=ROOT, rate="1gbit", sync=True),
    Target("DDP by hand with one line changed: muster.sync(model)",
           "plain_ddp_with_muster", 0.48, rate="1gbit", model="small"),
    Target("transformers' Trainer with one line changed: muster.sync_ddp(trainer)",
           "trainer_with_muster", 0.5, base="transformers_trainer", rate="1gbit", model="small"),
    Target("Accelerate's example with one line changed: muster.sync_ddp(accelerator, model)",
           "accelerate_with_muster", 0.5, base="accelerate_example", rate="1gbit", model="small"),
    Target("RTE's recipe with --sync all_reduce beside DDP by hand, steps per second",
           "all_reduce", 1 / 1.7, model=GIVEN, faster=True),
)  # fmt: skip


def table(found: Iterable[Results], model: str) -> list[list[str]]:
    """A row for each target and rate that says something about it, the head first."""
    rows = [["target", "rate", "wanted", "reached", ""]]
    for results in found:
        for target in TARGETS:
            if not target.applies(results, model):
                continue
            reached = target.reached(results)
            same = target.same_loss(results)
            verdict = target.verdict(reached) if same else "missed: other loss"
            rows.append([target.what, results.rate, target.wanted(), reached.text(2), verdict])
    return rows
