"""Speed-up and efficiency over workers, against one measured run of the same work.

With r samples per second on w workers, and r0 on the w0 workers of the base, the speed-up is r /
r0, the ideal one w / w0, and the efficiency r w0 / (r0 w). Samples per second are compared, not
seconds per step, so it is also valid if the batch grows with the workers (weak scaling).
"""

from typing import Any

import pandas as pd

from train.report.data import quantities
from train.report.data.columns import SAME_WORK, Entry, of, selected
from train.report.data.reader import Row
from train.report.data.subject import Subject
from train.report.data.tables import cells, frame, seconds


def speedup(subject: Subject) -> pd.DataFrame:
    """A row for each group of repeats, against the base of its work; the base itself gains nothing.

    `doubt` says why the base is in doubt, if it is.
    """
    known = seconds(subject)
    rates = dict(zip(known.get("run", ()), known.get("samples_per_s", ()), strict=True))
    made: list[Row] = []
    for base, alike in same_work(subject, rates):
        for entry in alike if any(one.workers > base.workers for one in alike) else ():
            row: Row = {"series": entry.series, "run": entry.label}
            row |= {"workers": entry.workers, "samples_per_s": rates[entry.label]}
            row |= {"base_workers": base.workers, "base": base.label}
            own = (rates[entry.label], entry.workers, rates[base.label], base.workers)
            row |= quantities.gain(*own)
            made.append(row | (quantities.NO_GAIN if entry is base else {}))
    return quantities.with_doubts(frame(made), known.to_dict("records"))


def same_work(
    subject: Subject, rates: dict[str, float], *, of_any_size: bool = False
) -> list[tuple[Entry, list[Entry]]]:
    """The base and all runs of each work; of a study with a reference, that is the only base.

    `of_any_size`: runs of one work may also differ in the size of the batch.
    """
    firsts = [entries[0] for label, entries in cells(subject) if rates.get(label)]
    if chosen := selected(firsts, subject.roles):
        return [(base_of(chosen, rates), firsts)]
    alike: dict[Any, list[Entry]] = {}
    for entry in firsts:
        is_of_each = entry.settings.get("local_batch_size")
        batch = ["local_batch_size"] if is_of_each else ["local_batch_size", "batch_size"]
        columns = (*SAME_WORK, *([] if of_any_size else batch))
        alike.setdefault(of(entry, columns), []).append(entry)
    return [(base_of(entries, rates), entries) for entries in alike.values()]


def base_of(alike: list[Entry], rates: dict[str, float]) -> Entry:
    """The run on the fewest workers; of several the one with `single`, or else the fastest."""
    fewest = min(one.workers for one in alike)
    narrow = [one for one in alike if one.workers == fewest]
    return max(narrow, key=lambda one: (one.sync == "single", rates[one.label]))
