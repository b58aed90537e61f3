"""What the benchmark is to show, as numbers, beside what it did show."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.benchmarks.made import SHAPES
from tests.benchmarks.results import HEAD, ROOT, Results, held

GIVEN = "given"


@dataclass(frozen=True)
class Target:
    """The time of `case` is to be at most `most` times that of `base`, by itself that of its own.

    With `sync` it is about communication alone, hidden or not, and `base` is what its links need at
    least.
    """

    what: str
    case: str
    most: float
    base: str = ""
    rate: str | None = None  # where it is meant; None: everywhere
    model: str | None = None  # that it is meant for, GIVEN for all but those made here; None: any
    sync: bool = False

    def applies(self, results: Results, model: str) -> bool:
        """Whether these results can say anything about it."""
        measured = {
            self.case,
            self.base or self.case,
        } <= results.runs.keys() | results.limits.keys()
        meant = self.model in (None, model if model in SHAPES else GIVEN)
        return measured and meant and self.rate in (None, results.rate)

    def row(self, results: Results) -> list[str]:
        ratios = results.sync_ratios if self.sync else results.ratios
        row = held(self.what, ratios(self.case, self.base), self.most)
        row[1] = results.rate
        sides = {self.case} if self.sync else {self.case, self.base or self.case}
        if not all(map(results.same_loss, sides)):
            row[-1] = "missed: other loss"
        return row


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
    Target("nanoGPT's loop with muster.sync(model)", "nanogpt", 0.82),
    Target("nanoGPT's loop, beside DDP with buckets as small", "nanogpt", 1.02,
           base="nanogpt_ddp_4mib"),
    Target("RTE's recipe with --sync all_reduce beside DDP by hand", "all_reduce", 0.59,
           model=GIVEN),
)  # fmt: skip


def table(found: Iterable[Results], model: str) -> list[list[str]]:
    """A row for each target and rate that says something about it, the head first."""
    rows = [
        target.row(results)
        for results in found
        for target in TARGETS
        if target.applies(results, model)
    ]
    return [HEAD, *rows]
