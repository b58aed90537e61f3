"""What differs between runs: settings, environment, code; and from which step their losses part."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.report.data.reader import Run, read_run
from train.report.data.tables import Table, all_steps, curve
from train.report.pages.page import markdown_table

TOLERANCE = 1e-6
# These differ between any two runs.
OF_ONE_START = frozenset({"master_port"})


@dataclass(frozen=True)
class Parting:
    """How the losses of a run compare with those of the base."""

    steps: int  # that both have
    largest: float
    parts_at: int | None  # the first step whose losses differ by more than the tolerance

    def sentence(self, base: str, other: str, tolerance: float) -> str:
        if not self.steps:
            return f"{base} and {other} have no step in common: losses cannot be compared"
        if self.parts_at is None:
            return (
                f"losses of {base} and {other} agree within {tolerance:g} at all {self.steps} "
                f"steps that both have (largest difference {self.largest:.3g})"
            )
        return (
            f"losses of {base} and {other} part at step {self.parts_at} by more than {tolerance:g} "
            f"(largest difference {self.largest:.3g} in {self.steps} steps)"
        )


def main(folders: list[Path], wanted: float | None) -> int:
    """Print what differs; 1 where losses that should be equal within `wanted` are not."""
    runs = [read_run(folder) for folder in folders]
    names = _names(folders)
    for title, facts in (
        ("Configuration", [run.config for run in runs]),
        ("Environment", [_environment(run) for run in runs]),
        ("Code", [_code(run) for run in runs]),
    ):
        print(f"## {title}\n\n{_shown(differences(facts, names))}\n")
    print("## Losses\n")
    tolerance = TOLERANCE if wanted is None else wanted
    partings = [part(runs[0], run, tolerance) for run in runs[1:]]
    for name, parting in zip(names[1:], partings, strict=True):
        print(parting.sentence(names[0], name, tolerance))
    for name, run in zip(names, runs, strict=True):
        for note in run.notes:
            print(f"note: {name}: {note}")
    equal = all(one.steps and one.parts_at is None for one in partings)
    return 0 if wanted is None or equal else 1


def part(base: Run, other: Run, tolerance: float) -> Parting:
    """Compare step by step; steps that only one of them has are left out."""
    first, second = curve(base), curve(other)
    apart = {step: abs(first[step] - second[step]) for step in sorted(first.keys() & second.keys())}
    over = [step for step, size in apart.items() if size > tolerance]
    # a loss that is no number equals none
    over += [row["step"] for run in (base, other) for row in all_steps(run) if row["loss"] is None]
    return Parting(len(apart), max(apart.values(), default=0.0), min(over, default=None))


def differences(facts: list[dict[str, Any]], names: list[str]) -> Table:
    """A row for each key whose value is not the same in all."""
    table = Table("differences", "What differs", ["what", *names])
    for key in dict.fromkeys(key for one in facts for key in one):
        values = [one.get(key) for one in facts]
        if key not in OF_ONE_START and any(value != values[0] for value in values):
            table.add(what=key, **dict(zip(names, map(str, values), strict=True)))
    return table


def _environment(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"hosts": ", ".join(sorted(run.environments)) or None}
    for key in ("python", "cpu", "cores", "device", "platform", "threads_per_worker"):
        found[key] = _each(run, key)
    for env in run.environments.values():
        packages = env.get("packages")
        if isinstance(packages, dict):
            found |= packages
    return found


def _code(run: Run) -> dict[str, Any]:
    return {"commit": _each(run, "commit"), "changed since": _each(run, "dirty")}


def _each(run: Run, key: str) -> str | None:
    """The value of all hosts, or each of theirs."""
    values = dict.fromkeys(str(env[key]) for env in run.environments.values() if key in env)
    return ", ".join(values) or None


def _names(folders: list[Path]) -> list[str]:
    """Folder names; whole paths where two are called the same."""
    short = [folder.resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else [str(folder) for folder in folders]
    return [name if names.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(names)]


def _shown(table: Table) -> str:
    return markdown_table(table) if table.rows else "nothing differs"
