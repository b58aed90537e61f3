"""Show differences between runs: settings, environment, code, and where losses begin to differ."""

from pathlib import Path

import pandas as pd

from muster.printable import printable
from train.report.data import frames
from train.report.data.columns import Entry
from train.report.data.frames import frame
from train.report.data.reader import Row, Run, read_run
from train.report.pages.page import markdown_table

TOLERANCE = 1e-6
# These differ between any two runs.
START_SETTINGS = frozenset({"master_port"})
HOST_FIELDS = "commit dirty python cpu cores device platform threads_per_worker".split()


def main(folders: list[Path], wanted: float | None) -> int:
    """Print the differences; return 1 if losses that should agree within `wanted` do not."""
    runs = [read_run(folder) for folder in folders]
    names = _names(folders)
    table = differences([run.config | _environment(run) for run in runs], names)
    print(f"## What differs\n\n{markdown_table(table) if len(table) else 'nothing'}\n")
    print("## Losses\n")
    tolerance = TOLERANCE if wanted is None else wanted
    parts = [compare_losses(runs[0], run, tolerance) for run in runs[1:]]
    for name, (_, text) in zip(names[1:], parts, strict=True):
        print(f"{names[0]} and {name}: {text}")
    for name, run in zip(names, runs, strict=True):
        for note in [*run.notes, *run.remarks]:
            print(f"note: {name}: {note}")
    return 0 if wanted is None or all(is_equal for is_equal, _ in parts) else 1


def compare_losses(base: Run, other: Run, tolerance: float) -> tuple[bool, str]:
    """Return whether the losses agree at all common steps, and a sentence about the result."""
    first, second = _curve(base), _curve(other)
    gaps = (first - second).abs().dropna()
    over = list(gaps.index[gaps > tolerance])
    over += [*first.index[first.isna()], *second.index[second.isna()]]  # a NaN never agrees
    if not len(gaps):
        return False, "losses cannot be compared, because the runs have no step in common"
    text = f"(largest difference {gaps.max():.3g})"
    if over:
        return False, f"losses differ by more than {tolerance:g} from step {min(over)} on {text}"
    return True, f"losses agree within {tolerance:g} at all {len(gaps)} common steps {text}"


def _curve(run: Run) -> pd.Series:
    """The loss of each step; NaN if it is not a number."""
    steps = frames.steps([Entry(run, {})])
    return steps[steps["is_kept"]].set_index("step")["loss"]


def differences(facts: list[Row], names: list[str]) -> pd.DataFrame:
    """Return a row for each key whose value is not the same in all runs."""
    found = []
    for key in dict.fromkeys(key for start in facts for key in start):
        values = [start.get(key) for start in facts]
        if key not in START_SETTINGS and any(value != values[0] for value in values):
            found.append({"what": key, **dict(zip(names, map(str, values), strict=True))})
    return frame(found)


def _environment(run: Run) -> Row:
    """Facts about the hosts (all distinct values, if hosts differ), and versions of packages."""
    found: Row = {"hosts": ", ".join(sorted(run.environments)) or None}
    for key in HOST_FIELDS:
        values = [str(env[key]) for env in run.environments.values() if key in env]
        found[key] = ", ".join(dict.fromkeys(values)) or None
    for env in run.environments.values():
        found |= env["packages"] if isinstance(env.get("packages"), dict) else {}
    return found


def _names(folders: list[Path]) -> list[str]:
    """The names of the folders, or their whole paths if two names are equal."""
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    names = [printable(name) for name in names]
    return [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names)]
