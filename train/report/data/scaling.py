"""Speed-up and efficiency over workers, against one measured run of the same work.

With r samples per second on w workers, and r0 on the w0 workers of the base, the speed-up is
r / r0, the ideal one w / w0, and the efficiency r w0 / (r0 w). Samples per second are compared, not
seconds per step, so that it also holds where the batch grows with the workers (weak scaling).
"""

from collections.abc import Callable
from typing import Any

from train.report.data.subject import Entry, Subject, label_part, varying_of
from train.report.data.tables import Table, cells, seconds

WIDTH = frozenset({"workers", "nodes"})
# How gradients become equal, over which links, and who computes what: runs that differ in these
# alone do the same work, and are measured against the same run.
SAME_WORK = frozenset(
    "sync split bucket_mb overlap sparse_rows compress compress_rank"
    " compress_share sync_every outer_lr outer_momentum backend network rate busy timeout_s"
    " save_model evaluate eval_batch_size max_steps keep_last keep_best max_restarts"
    " stop_signal".split()
)
DOUBTFUL = 1.05  # an efficiency above it is more likely a disturbed base


def speedup(subject: Subject) -> Table:
    """A row for each group of runs that are repeats, against the base of its work."""
    table = Table("speedup", "Speed-up and efficiency")
    rates = {row["run"]: row["samples_per_s"] for row in seconds(subject).rows}
    firsts = [entries[0] for label, entries in cells(subject) if rates.get(label)]
    for alike in _same_work(firsts, subject.varying):
        base = _base(alike, rates)
        for entry in alike if any(one.workers > base.workers for one in alike) else ():
            ideal = entry.workers / base.workers
            gain = rates[entry.label] / rates[base.label]
            table.add(
                series=_series(entry, firsts, subject.varying),
                run=entry.label,
                workers=entry.workers,
                samples_per_s=rates[entry.label],
                base_workers=base.workers,
                base=base.label,
                speedup=gain,
                ideal=ideal,
                efficiency=gain / ideal,
            )
    return table


def _same_work(entries: list[Entry], varying: list[str]) -> list[list[Entry]]:
    keys = [key for key in varying if key not in WIDTH | SAME_WORK | {"batch_size"}]
    size, _ = _batch(entries)
    found: dict[Any, list[Entry]] = {}
    for entry in entries:
        work = (size(entry), *(repr(entry.settings.get(key)) for key in keys))
        found.setdefault(work, []).append(entry)
    return list(found.values())


def _base(alike: list[Entry], rates: dict[str, float]) -> Entry:
    """The run on the fewest workers; of several `single`, or else the fastest."""
    fewest = min(one.workers for one in alike)
    found = [one for one in alike if one.workers == fewest]
    return max(found, key=lambda one: (one.sync == "single", rates[one.label]))


def _batch(entries: list[Entry]) -> tuple[Callable[[Entry], Any], str]:
    """The size that stays the same while workers are added, and the text for it.

    It is that of the global batch, or of a worker's part of it where these have fewer distinct
    sizes, as in weak scaling.
    """

    def total(entry: Entry) -> Any:
        return entry.settings.get("batch_size")

    def part(entry: Entry) -> Any:
        size = total(entry)
        return size / entry.workers if isinstance(size, int | float) else size

    parts, totals = ({repr(size(one)) for one in entries} for size in (part, total))
    return (part, "batch {:g} a worker") if len(parts) < len(totals) else (total, "batch {:g}")


def _series(entry: Entry, entries: list[Entry], varying: list[str]) -> str:
    """The settings in which it differs from other series; after its title, from others of that."""
    if entry.title:
        own = [one for one in entries if one.title == entry.title]
        keys = [key for key in varying_of(own) if key not in WIDTH | {"batch_size"}]
        parts = [found for key in keys if (found := label_part(key, entry))]
        return ", ".join([entry.title, *parts])
    size, text = _batch(entries)
    several = len({repr(size(one)) for one in entries}) > 1
    parts = [text.format(size(entry))] if several and size(entry) is not None else []
    keys = [key for key in varying if key not in WIDTH | _grows(entries) | {"batch_size"}]
    parts += [found for key in keys if (found := label_part(key, entry))]
    return ", ".join(parts) or entry.sync


def _grows(entries: list[Entry]) -> set[str]:
    """Settings whose value follows from the number of workers."""
    values: dict[int, set[str]] = {}
    for entry in entries:
        values.setdefault(entry.workers, set()).add(repr(entry.settings.get("eval_batch_size")))
    one_each = len(values) > 1 and all(len(one) == 1 for one in values.values())
    return {"eval_batch_size"} if one_each else set()
