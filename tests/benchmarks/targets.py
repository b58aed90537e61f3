"""The benchmark's targets, as numbers, and the table that compares them with the results."""

from collections.abc import Iterable
from typing import NamedTuple

from tests.benchmarks.cases import BASE, GPT, KNOWN
from tests.benchmarks.made import SHAPES
from tests.benchmarks.results import Results, held

GIVEN = "given"


class Target(NamedTuple):
    """`case` is to take at most `most` times as long as `base`."""

    what: str
    case: str
    most: float
    base: str = BASE
    rate: str = ""  # at which it applies; "": any
    model: str = ""  # to which it applies; GIVEN: any that is not made here; "": any


TARGETS = (
    Target("all_reduce is never slower than DDP, all else alike", "all_reduce", 1.0, "ddp"),
    Target("all_reduce is never slower than DDP by hand, on as many tokens",
           "all_reduce_padded", 1.0),
    Target("sparse rows on the small model", "all_reduce", 0.38, rate="1gbit", model="small"),
    Target("sparse rows on BERT-base's shape", "all_reduce", 0.82, rate="1gbit", model="base"),
    Target("gather_scatter beside its textbook loop, on as many tokens",
           "gather_scatter_padded", 0.5, "loop_gather_scatter"),
    Target("DDP by hand with one line changed: muster.sync(model)",
           "plain_ddp_with_muster", 0.48, rate="1gbit", model="small"),
    Target("transformers' Trainer with one line changed: muster.sync_ddp(trainer)",
           "trainer_with_muster", 0.5, "transformers_trainer", "1gbit", "small"),
    Target("Accelerate's example with one line changed: muster.sync_ddp(accelerator, model)",
           "accelerate_with_muster", 0.5, "accelerate_example", "1gbit", "small"),
    Target("nanoGPT's loop with muster.sync(model)", "nanogpt", 0.82, GPT),
    Target("nanoGPT's loop, beside DDP with buckets as small", "nanogpt", 1.02,
           "nanogpt_ddp_4mib"),
    Target("--log-with tensorboard beside none", "all_reduce_tensorboard", 1.02, "all_reduce"),
    Target("RTE's recipe with --sync all_reduce beside DDP by hand", "all_reduce", 0.59,
           model=GIVEN),
)  # fmt: skip


def table(found: Iterable[Results], model: str) -> list[dict[str, str]]:
    """Return a row for each target and each rate at which it applies."""
    rows = []
    for results in found:
        here = ("", results.rate, model if model in SHAPES else GIVEN)
        for one in TARGETS:
            if {one.rate, one.model} <= {*here} and {one.case, one.base} <= results.runs.keys():
                row = held(one.what, results.ratios(one.case, one.base), one.most)
                if not all(results.same_loss(KNOWN[name]) for name in (one.case, one.base)):
                    row["verdict"] = "missed: other loss"
                rows.append({**row, "rate": results.rate})
    return rows
