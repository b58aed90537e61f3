"""Numbers become sentences, and each sentence names the number it rests on."""

from train.records.summary import PHASES
from train.report.data.event_tables import BAND, BAND_FROM_BYTES, FAR, is_far_off
from train.report.data.rank_work import is_clear, straggler
from train.report.data.scaling import DOUBTFUL
from train.report.data.subject import Entry, Subject
from train.report.data.tables import Table, curve, curve_key, reference
from train.report.pages.conclusions import PARTED, largest_gap
from train.report.pages.units import duration

# How far rounding alone can move the first loss, as a part of it.
ROUNDING = {"fp64": 1e-9, "fp32": 1e-5}
COARSE = 2e-4  # with numbers of 16 bits


def of_losses(table: Table, subject: Subject) -> list[str]:
    compared = [row for row in table.rows if row["largest_difference"] is not None]
    if not compared:
        return []
    worst = max(compared, key=lambda row: row["largest_difference"])
    if worst["largest_difference"] == 0:
        return [
            f"The losses of {len(compared)} run(s) equal their reference's wherever both have one."
        ]
    opening = (
        f"The largest difference between the loss of a run and its reference is "
        f"{worst['largest_difference']:.2g} ({worst['run']} against {worst['reference']}, "
        f"step {worst['at_step']}, of {worst['steps_compared']} steps compared)."
    )
    return [opening, *_why_apart(subject)]


def _why_apart(subject: Subject) -> list[str]:
    """Why curves differ: from the first loss on perhaps by dropout masks, later by rounding."""
    at_once, later = [], []
    for entry in subject.entries:
        base = reference(entry, subject)
        largest = largest_gap(entry, base)
        if largest is None or largest <= PARTED:
            continue
        first, second = curve(base.run).get(1), curve(entry.run).get(1)
        if first is None or second is None:
            continue
        precision = str(entry.settings.get("precision"))
        if abs(first - second) > ROUNDING.get(precision, COARSE) * max(1.0, abs(first)):
            if _draws_otherwise(entry, base):
                at_once.append(entry)
        elif precision in ROUNDING:
            later.append(entry)
    found = []
    if later:
        names = "; ".join(entry.name for entry in later)
        found.append(
            f"Equal at the first step but for rounding, later apart by over {PARTED:g}: {names}. "
            "Rounding that training amplifies does so; other samples, weights or dropout masks "
            "would show in the first loss."
        )
    if at_once:
        found.append(
            "Losses differ from the first step on, and dropout was not set to 0: where a model has "
            "dropout, another number of workers or another split draws other masks, so that only "
            "runs with the same workers and the same split have the same curve."
        )
        found += _same_draw(subject)
    return found


def _draws_otherwise(entry: Entry, base: Entry) -> bool:
    """Whether dropout can have had other masks: it is not off, and samples are shared otherwise."""
    if 0 in (entry.settings.get("dropout"), base.settings.get("dropout")):
        return False
    splits = [one.settings.get("split") or "even" for one in (entry, base)]
    return entry.workers != base.workers or splits[0] != splits[1]


def _same_draw(subject: Subject) -> list[str]:
    """Compare runs on equally many workers with one split: dropout included, their losses agree."""
    found = []
    for width in sorted({entry.workers for entry in subject.entries}):
        groups: dict[object, list[Entry]] = {}
        for entry in subject.entries:
            if entry.workers == width and curve(entry.run):
                draw = curve_key(entry), entry.settings.get("split") or "even"
                groups.setdefault(draw, []).append(entry)
        apart = [
            (gap, entry, group[0])
            for group in groups.values()
            for entry in group[1:]
            if (gap := largest_gap(entry, group[0])) is not None
        ]
        if apart:
            gap, entry, base = max(apart, key=lambda one: one[0])
            found.append(
                f"Among runs on {width} worker(s) with one split the largest difference is "
                f"{gap:.2g} ({entry.name} against {base.name})."
            )
    return found


def of_seconds(table: Table) -> list[str]:
    found = []
    rows = [row for row in table.rows if row["mean_s"]]
    if len(rows) == 1:
        (row,) = rows
        largest = max(PHASES, key=lambda phase: row[f"{phase}_s"] or 0.0)
        part_s = row[f"{largest}_s"] or 0.0
        found.append(
            f"{row['run']}: {largest} takes {part_s / row['mean_s']:.0%} of an iteration "
            f"({duration(part_s)} of {duration(row['mean_s'])})."
        )
    uneven = [row for row in rows if (row["spread_s"] or 0.0) > row["mean_s"] / 2]
    if uneven:
        each = "; ".join(
            f"{row['run']} (mean {duration(row['mean_s'])}, median {duration(row['median_s'])})"
            for row in uneven
        )
        found.append(
            f"Iterations differ widely in {each}. Something else may have used the machine: trust "
            "these means, and speed-ups over them, less."
        )
    return found


def of_speedup(table: Table) -> list[str]:
    """What the widest run of a series gains; of several series that is the table's to say."""
    found = []
    wider = {row["series"] for row in table.rows if row["ideal"] > 1}
    for series in table.unique("series") if len(wider) == 1 else ():
        widest = max(table.select(series=series), key=lambda row: row["workers"])
        if widest["ideal"] > 1:
            found.append(
                f"{series}: {widest['workers']} workers do {widest['speedup']:.2f} times "
                f"the samples per second of {widest['base']} (ideal {widest['ideal']:.4g}), "
                f"an efficiency of {widest['efficiency']:.0%}."
            )
    return found + doubts(table)


def doubts(table: Table) -> list[str]:
    """Warnings of efficiencies that can hardly be: their base was slowed, more likely."""
    found = []
    for base in table.unique("base"):
        over = [row for row in table.select(base=base) if row["efficiency"] > DOUBTFUL]
        if over:
            each = ", ".join(f"{row['efficiency']:.0%} of {row['run']}" for row in over)
            found.append(
                f"An efficiency above {DOUBTFUL:.0%} ({each}) is seldom real: more likely "
                f"something else slowed the run that it is measured against ({base}). Measure that "
                "again before using any speed-up over it."
            )
    return found


def of_ranks(table: Table) -> list[str]:
    """Which rank the others wait for, where it is clear."""
    found = []
    for label in table.unique("run"):
        rows = table.select(run=label)
        if (slow := straggler(rows)) and is_clear(slow[0], rows):
            row, mean_s = slow
            found.append(
                f"{label}: the others wait for rank {row['rank']}, whose own work takes "
                f"{duration(row['own_work_s'])} per iteration against {duration(mean_s)}."
            )
    return found


def of_traffic(table: Table) -> list[str]:
    judged = [row for row in table.rows if row["band"] in ("inside", "outside")]
    found = []
    if judged:
        inside = sum(row["band"] == "inside" for row in judged)
        ratios = [row["ratio"] for row in judged]
        found.append(
            f"{inside} of {len(judged)} measurements lie in [{BAND[0]:.2f}, {BAND[1]:.2f}] "
            f"times the expected bytes (from {min(ratios):.3f} to {max(ratios):.3f})."
        )
    if any(row["band"] == "small" for row in table.rows):
        found.append(
            f"Gradients of less than {BAND_FROM_BYTES / 1e6:.0f} MB are not judged by that band: "
            "headers, acknowledgements and other messages weigh more in small transfers."
        )
    notes = dict.fromkeys(row["note"] for row in table.rows if row["note"])
    return found + [f"Noted while measuring: {note}." for note in notes]


def of_balance(table: Table) -> list[str]:
    return [
        f"{row['run']}: the plan {row['parts']} after step {row['step']} promised "
        f"{row['predicted_gain']:.2f} times the speed of even parts, and its iterations were "
        f"{row['measured_gain']:.2f} times as fast as those before it."
        for row in table.rows
        if row["predicted_gain"] is not None and row["measured_gain"] is not None
    ]


def of_checkpoints(table: Table) -> list[str]:
    known = [row for row in table.rows if row["stall_s"]]
    found = []
    if known:
        worst = max(known, key=lambda row: row["stall_s"])
        found.append(
            f"Training stood still longest in {worst['run']}, rank {worst['rank']}: on average "
            f"{duration(worst['stall_s'])} for each of {worst['checkpoints']} checkpoint(s)."
        )
    failed = sum(row["failed"] for row in table.rows)
    return found + ([f"{failed} checkpoint(s) could not be written."] if failed else [])


def of_prediction(table: Table) -> list[str]:
    known = [row for row in table.rows if row["error"] is not None]
    if not known:
        return []
    worst = max(known, key=lambda row: abs(row["error"]))
    text = (
        f"The prediction is furthest off for {worst['mode']} on {worst['workers']} workers: "
        f"{worst['error']:+.1%} ({duration(worst['predicted_s'])}, "
        f"measured {duration(worst['measured_s'])})."
    )
    if is_far_off(table):
        text += f" With errors above {FAR:.0%} nothing is shown for what was not measured."
    return [text]
