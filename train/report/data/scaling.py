"""Speed-up and efficiency over workers, relative to one measured run of the same work.

With r samples per second on w workers, and r0 on the w0 workers of the base, the speed-up is
r / r0, the ideal speed-up w / w0, and the efficiency r w0 / (r0 w). Samples per second are
compared, not seconds per step, so this is also valid if the batch grows with the workers (weak
scaling).
"""

import pandas as pd

from train.report.data import quantities
from train.report.data.columns import SAME_WORK, WORKERS, by_label, selected
from train.report.data.frames import records
from train.report.data.subject import Subject
from train.report.data.tables import firsts, seconds

SAME_SIZE = [*SAME_WORK, "local_batch_size", "whole_batch"]


def speedup(subject: Subject) -> pd.DataFrame:
    """A row for each label, relative to the base of its work; the base itself has no gain.

    `doubt` is the reason why the base is in doubt, if it is.
    """
    known = seconds(subject)
    table = quantities.with_gains(with_bases(rates(subject, known), subject, SAME_SIZE))
    of_works = table.groupby("work")
    table = table[of_works[WORKERS].transform("max") > table["base_workers"]]
    table = table.sort_values("work", kind="stable")[
        ["series", "run", WORKERS, "samples_per_s", "base_workers", "base", "speedup", "ideal",
         "efficiency"]
    ]  # fmt: skip
    return quantities.with_doubts(table.reset_index(drop=True), records(known))


def rates(subject: Subject, known: pd.DataFrame) -> pd.DataFrame:
    """The labels whose samples per second are known, with their settings.

    `whole_batch` is the batch size, if it was not set per worker.
    """
    of_labels = known.set_index("run")["samples_per_s"].dropna()
    first = firsts(subject).drop(columns="samples_per_s")
    is_of_each = first["local_batch_size"].fillna(0).astype(bool)
    first["whole_batch"] = first["batch_size"].mask(is_of_each)
    return first.join(of_labels, how="right")


def with_bases(table: pd.DataFrame, subject: Subject, same: list[str]) -> pd.DataFrame:
    """Return `table` with the number of each row's `work`, and its `base`.

    Runs with the same values in the columns `same` are one work. A study's reference is the only
    base. Without one, the base is the run on the fewest workers; if there are several, the run with
    `single`, or else the fastest.
    """
    chosen = selected([group[0] for group in by_label(subject.entries).values()], subject.roles)
    of_study = table["run"].isin([entry.label for entry in chosen])
    of_values = table.reindex(columns=same).groupby(same, dropna=False, sort=False)
    table = table.assign(work=0 if of_study.any() else of_values.ngroup())
    bases = table[of_study] if of_study.any() else table
    bases = bases.assign(is_single=bases["sync"] == "single").sort_values(
        [WORKERS, "is_single", "samples_per_s"], ascending=[True, False, False]
    )
    of_works = bases.drop_duplicates("work").set_index("work")["run"]
    return table.assign(base=table["work"].map(of_works))
