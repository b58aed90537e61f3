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
    return f"Interfaces counted {min(ratios):.2f} to {max(ratios):.2f} times the expected bytes."


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
