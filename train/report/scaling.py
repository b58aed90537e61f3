"""Speed-up and efficiency over workers, against the fewest workers of the same settings."""

from typing import Any

from train.report.facts import Table, cells, seconds
from train.report.study import Entry, Subject

WIDTH = frozenset({"workers", "nodes"})


def speedup(subject: Subject) -> Table:
    """In samples per second, so that it also holds where the batch grows with the workers."""
    columns = ["series", "run", "workers", "samples_per_s", "base_workers", "base", "speedup"]
    columns += ["ideal", "efficiency"]
    table = Table("speedup", "Speed-up and efficiency", columns)
    rates = {row["run"]: row["samples_per_s"] for row in seconds(subject).rows}
    firsts = [entries[0] for label, entries in cells(subject) if rates.get(label)]
    keys = [key for key in subject.varying if key not in WIDTH | _grows(firsts)]
    for entry in firsts:
        base = _base(entry, firsts, keys)
        if base is None or (base is entry and not _is_base(entry, firsts, keys)):
            continue
        ideal = entry.workers / base.workers
        gain = rates[entry.label] / rates[base.label]
        table.add(
            series=", ".join(_said(key, entry.settings.get(key)) for key in keys) or entry.sync,
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


def _grows(entries: list[Entry]) -> set[str]:
    """Settings that each number of workers has one value of, as the batch in weak scaling."""
    found = set()
    for key in ("batch_size", "eval_batch_size"):
        values: dict[int, set[str]] = {}
        for entry in entries:
            values.setdefault(entry.workers, set()).add(repr(entry.settings.get(key)))
        if len(values) > 1 and all(len(one) == 1 for one in values.values()):
            found.add(key)
    return found


def _base(entry: Entry, entries: list[Entry], keys: list[str]) -> Entry | None:
    """The run with the fewest workers; of several, the one of the same sync mode."""
    fixed = [key for key in keys if key != "sync"]
    alike = [one for one in entries if _values(one, fixed) == _values(entry, fixed)]
    fewest = min(one.workers for one in alike)
    # a mode's own run comes before another mode's, unless only the other has one worker
    same = [one for one in alike if one.workers == fewest and one.sync == entry.sync]
    single = [one for one in alike if one.workers == fewest == 1]
    if same or single:
        return (same or single)[0]
    own = [one for one in alike if one.sync == entry.sync]
    return min(own, key=lambda one: one.workers)


def _is_base(entry: Entry, entries: list[Entry], keys: list[str]) -> bool:
    """Whether another run is measured against this one."""
    return any(one is not entry and _base(one, entries, keys) is entry for one in entries)


def _values(entry: Entry, keys: list[str]) -> list[str]:
    return [repr(entry.settings.get(key)) for key in keys]


def _said(key: str, value: Any) -> str:
    if key in ("sync", "precision", "task", "split"):
        return str(value)
    return f"{key.replace('_size', '').replace('_', ' ')} {value}"
