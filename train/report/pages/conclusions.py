"""What a report concludes, in sentences: each is said only where it was measured.

An order of speed needs 95 % intervals that do not overlap, equal losses need a comparison at every
step that both runs have, and what no run has on record is not concluded from the runs that have it.
"""

from train.report.data import tables
from train.report.data.reader import Row
from train.report.data.subject import Entry, Subject
from train.report.data.tables import Table

PARTED = 1e-3  # losses that are further apart are not called equal
WORTH_SAYING = 0.1  # of a step: below it, waiting is no finding
# Runs that differ in one of these do not do the same work in a step.
OTHER_WORK = frozenset({"task", "model", "batch_size", "accumulation", "max_seq_length"})


def fastest(rows: list[Row], subject: Subject, seconds: str = "mean_s") -> str:
    """Which is the fastest by the column `seconds`, where that is more than chance."""
    rows = sorted((row for row in rows if row[seconds]), key=lambda row: row[seconds])
    if len(rows) < 2 or OTHER_WORK & set(subject.varying):
        return ""
    if any(None in (row["low_s"], row["high_s"]) for row in rows):
        return ""
    first, second, last = rows[0], rows[1], rows[-1]
    close = [row for row in rows[1:] if row["low_s"] <= first["high_s"]]
    if len(rows) == 2 and not close:
        return f"{first['run']} is {_times(second, first, seconds)} times as fast as {last['run']}."
    if not close:
        return (
            f"{first['run']} is the fastest: {_times(second, first, seconds)} times as fast as "
            f"{second['run']}, {_times(last, first, seconds)} times as fast as {last['run']}."
        )
    if len(close) == 1:
        text = (
            f"{first['run']} and {close[0]['run']} are equally fast as far as was measured: their "
            "95 % intervals overlap."
        )
    else:
        others = ", ".join(row["run"] for row in close)
        text = (
            f"No run is clearly the fastest: the 95 % intervals of {others} overlap with that of "
            f"{first['run']}, whose mean is the shortest."
        )
    if last in close:
        return text
    return f"{text} {last['run']} takes {_times(last, first, seconds)} times as long."


def _times(slow: Row, fast: Row, seconds: str) -> str:
    return f"{slow[seconds] / fast[seconds]:.2f}"


def most_samples(rows: list[Row]) -> str:
    """Which run does the most samples per second, where that is more than chance; of `seconds`."""
    rows = [row for row in rows if row["samples_per_s"] and row["mean_s"]]
    if len(rows) < 2 or any(None in (row["low_s"], row["high_s"]) for row in rows):
        return ""
    first, *others = sorted(rows, key=lambda row: row["samples_per_s"], reverse=True)
    # Samples of a step are fixed: their rate is lowest where a step takes longest.
    least = first["samples_per_s"] * first["mean_s"] / first["high_s"]
    close = [
        row
        for row in others
        if not row["low_s"] or row["samples_per_s"] * row["mean_s"] / row["low_s"] >= least
    ]
    if not close:
        return f"{first['run']} does the most samples per second: {first['samples_per_s']:.4g}."
    if len(close) == len(others):
        return "No run clearly does the most samples per second: 95 % intervals overlap."
    names = ", ".join(row["run"] for row in [first, *close])
    return f"These do the most samples per second, their 95 % intervals overlap: {names}."


def metrics(table: Table) -> str:
    """Of the first metric: where one run ends, or how far several are apart at the same step."""
    name = next(iter(table.unique("metric")), None)
    rows = table.select(metric=name)
    runs = list(dict.fromkeys(row["run"] for row in rows))
    if len(runs) == 1:
        first, last = rows[0], rows[-1]
        return (
            f"{name} is {first['value']:.4g} at step {first['step']} and {last['value']:.4g} at "
            f"step {last['step']}."
        )
    by_step: dict[int, list[float]] = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row["value"])
    gaps = {step: max(values) - min(values) for step, values in by_step.items() if len(values) > 1}
    if not gaps:
        return ""
    step = max(gaps, key=lambda one: gaps[one])
    if gaps[step] == 0:
        return f"Runs that were evaluated at the same step have the same {name}."
    return f"At the same step, {name} differs by at most {gaps[step]:.2g} (step {step})."


def waiting(rows: list[Row]) -> str:
    """Who waits longest for others, of a step; of all only where all are on record."""
    several = [row for row in rows if row["mean_s"] and row["workers"] > 1]
    known = [row for row in several if row["exposed_s"] is not None]
    if not known:
        return ""
    most = max(known, key=lambda row: row["exposed_s"] / row["mean_s"])
    share = most["exposed_s"] / most["mean_s"]
    if share >= WORTH_SAYING:
        return f"{most['run']} waits for communication during {share:.0%} of a step."
    if len(known) < len(several):
        return ""
    return f"No run waits more than {WORTH_SAYING:.0%} of a step for communication."


def counted(table: Table) -> str:
    """How many times the expected bytes interfaces counted, where that is judged."""
    ratios = [row["ratio"] for row in table.rows if row["band"] in ("inside", "outside")]
    if not ratios:
        return ""
    least, most = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    times = least if least == most else f"{least} to {most}"
    return f"Interfaces counted {times} times the expected bytes."


def equal_losses(subject: Subject) -> str:
    """Whether all runs have the losses of their reference; how many, where it is not all."""
    pairs = [
        (gap, entry, base)
        for entry in subject.entries
        if (base := tables.reference(entry, subject)) is not entry
        and (gap := largest_gap(entry, base)) is not None
    ]
    if not pairs:
        return ""
    for _, entry, base in pairs:
        if (step := lost_at(entry, base)) is not None:
            return f"The loss of {entry.name} is no number at step {step}; that of {base.name} is."
    gap, entry, base = max(pairs, key=lambda one: one[0])
    if gap > PARTED:
        return (
            f"The losses of {entry.name} differ from those of {base.name} by up to {gap:.2g}; "
            f"by more than {PARTED:g} first at step {parted_at(entry, base)}."
        )
    how = f"to {gap:.1g}" if gap else "digit for digit"
    alone = _without_reference(subject, pairs)
    bases = list(dict.fromkeys(one.name for _, _, one in pairs))
    if len(bases) == 1 and not alone:
        return f"All losses equal those of {base.name}, {how}."
    text = f"Equal to the losses of their references, {how}: those of {_runs(len(pairs))}."
    return text + (f" Runs without a reference: {alone}." if alone else "")


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _without_reference(subject: Subject, pairs: list[tuple[float, Entry, Entry]]) -> int:
    """Runs with losses that were compared with no other run's."""
    used = {id(one) for _, entry, base in pairs for one in (entry, base)}
    return sum(bool(tables.curve(one.run)) and id(one) not in used for one in subject.entries)


def equality(entries: list[Entry], subject: Subject) -> str | None:
    """How far the losses of repeats are from those of their references: the furthest counts."""
    gaps, sync = [], ""
    for entry in entries:
        base = tables.reference(entry, subject)
        if base is entry:
            continue
        if lost_at(entry, base) is not None:
            return "not a number"
        if (gap := largest_gap(entry, base)) is not None:
            gaps.append(gap)
            sync = base.title or base.sync
    if not gaps:
        return "reference" if any(_is_reference(one, subject) for one in entries) else None
    return "equal" if max(gaps) == 0 else f"within {max(gaps):.1g} of {sync}"


def _is_reference(entry: Entry, subject: Subject) -> bool:
    others = [one for one in subject.entries if one is not entry]
    return any(tables.reference(one, subject) is entry for one in others)


def largest_gap(entry: Entry, base: Entry) -> float | None:
    """The largest difference of their losses; None where they have no step in common."""
    first, second = tables.curve(base.run), tables.curve(entry.run)
    return max((abs(first[s] - second[s]) for s in first.keys() & second.keys()), default=None)


def parted_at(entry: Entry, base: Entry) -> int | None:
    """The first step at which their losses differ by more than `PARTED`."""
    first, second = tables.curve(base.run), tables.curve(entry.run)
    both = sorted(first.keys() & second.keys())
    return next((s for s in both if abs(first[s] - second[s]) > PARTED), None)


def lost_at(entry: Entry, base: Entry) -> int | None:
    """The first step at which the loss of `entry` is no number and that of `base` is one."""
    first, second = tables.curve(base.run), tables.curve(entry.run)
    steps = [row["step"] for row in tables.all_steps(entry.run)]
    return next((step for step in steps if step in first and step not in second), None)
