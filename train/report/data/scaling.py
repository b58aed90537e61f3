"""Speed-up and efficiency over workers, against one measured run of the same work.

With r samples per second on w workers, and r0 on the w0 workers of the base, the speed-up is r /
r0, the ideal one w / w0, and the efficiency r w0 / (r0 w). Samples per second are compared, not
seconds per step, so it is also valid if the batch grows with the workers (weak scaling).
"""

from collections.abc import Callable
from typing import Any

import pandas as pd

from train.report.data import quantities
from train.report.data.reader import Row
from train.report.data.subject import (
    OF_TESTBED,
    OF_TOPK,
    WIDTH,
    Entry,
    Subject,
    affecting,
    differing,
)
from train.report.data.tables import cells, frame, seconds

SIZES = frozenset({"batch_size", "local_batch_size"})


def speedup(subject: Subject) -> pd.DataFrame:
    """A row for each group of repeats, against the base of its work; the base itself gains nothing.

    `doubt` says why the base is in doubt, if it is.
    """
    known = seconds(subject)
    rates = dict(zip(known.get("run", ()), known.get("samples_per_s", ()), strict=True))
    firsts = [entries[0] for label, entries in cells(subject) if rates.get(label)]
    made: list[Row] = []
    for alike in same_work(firsts, subject.varying):
        base = base_of(alike, rates)
        for entry in alike if any(one.workers > base.workers for one in alike) else ():
            row: Row = {"series": series(entry, firsts, subject.varying), "run": entry.label}
            row |= {"workers": entry.workers, "samples_per_s": rates[entry.label]}
            row |= {"base_workers": base.workers, "base": base.label}
            own = (rates[entry.label], entry.workers, rates[base.label], base.workers)
            row |= quantities.gain(*own)
            made.append(row | (quantities.NO_GAIN if entry is base else {}))
    return quantities.with_doubts(frame(made), known.to_dict("records"))


def same_work(
    entries: list[Entry], varying: list[str], *, of_any_size: bool = False
) -> list[list[Entry]]:
    """Groups of runs whose steps compute the same: they differ only in workers and in sending.

    `of_any_size`: they may also differ in the size of the batch.
    """
    free = affecting("gradients", "sending", "sharing", "nothing") | WIDTH | OF_TESTBED | OF_TOPK
    keys = [key for key in varying if key not in free | SIZES]
    size, _ = _batch(entries)
    found: dict[Any, list[Entry]] = {}
    for entry in entries:
        work = (of_any_size or size(entry), *(repr(entry.settings.get(key)) for key in keys))
        found.setdefault(work, []).append(entry)
    return list(found.values())


def base_of(alike: list[Entry], rates: dict[str, float]) -> Entry:
    """The run on the fewest workers; of several the one with `single`, or else the fastest."""
    fewest = min(one.workers for one in alike)
    found = [one for one in alike if one.workers == fewest]
    return max(found, key=lambda one: (one.sync == "single", rates[one.label]))


def _batch(entries: list[Entry]) -> tuple[Callable[[Entry], Any], str]:
    """The batch size that stays the same while workers are added, and its text.

    It is the global batch's, or that of a worker's part if these have fewer different sizes, as in
    weak scaling.
    """

    def total(entry: Entry) -> Any:
        return entry.settings.get("batch_size")

    def part(entry: Entry) -> Any:
        size = total(entry)
        return size / entry.workers if isinstance(size, int | float) else size

    parts, totals = ({repr(size(one)) for one in entries} for size in (part, total))
    is_of_each = all(one.settings.get("local_batch_size") for one in entries)
    of_each = (part, "batch {:g} a worker")
    return of_each if is_of_each or len(parts) < len(totals) else (total, "batch {:g}")


def series(entry: Entry, entries: list[Entry], varying: list[str]) -> str:
    """The settings in which it differs from other series; after a title, from those with it."""
    if entry.title:
        return differing(entry, entries, varying, WIDTH | {"batch_size"})
    size, text = _batch(entries)
    several = len({repr(size(one)) for one in entries}) > 1
    batch = text.format(size(entry)) if several and size(entry) is not None else ""
    own = differing(entry, entries, varying, WIDTH | SIZES | _grows(entries))
    return ", ".join(filter(None, [batch, own])) or entry.sync


def _grows(entries: list[Entry]) -> set[str]:
    """Settings whose value follows from the number of workers."""
    values: dict[int, set[str]] = {}
    for entry in entries:
        values.setdefault(entry.workers, set()).add(repr(entry.settings.get("eval_batch_size")))
    one_each = len(values) > 1 and all(len(one) == 1 for one in values.values())
    return {"eval_batch_size"} if one_each else set()
