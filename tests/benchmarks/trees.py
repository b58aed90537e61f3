"""Compare this tree with an older commit: a benchmark runs both in turns on one machine.

How it works: git clones this repository at the other commit into a temporary folder. Each tree gets
an environment of its own with that tree and this environment's packages on its path, so that
agents and workers use their own tree, and both search equally many folders at the start. Nothing is
installed, and no network is needed. Both are compiled first.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from muster.checkout import CHECKOUT
from tests.environments import own_packages, python_path

T = TypeVar("T")
FOLDERS = ("configs", "launch", "muster", "train")  # whose files a run executes
COMMANDS = ("launch", "slurm")  # folders of a tree that a command line may name
THIS = "this tree"


@dataclass(frozen=True)
class Tree:
    """A checkout, and a Python that imports from it."""

    name: str
    root: Path
    python: str
    state: Path  # its record of nodes, apart from the user's own

    @property
    def env(self) -> dict[str, str]:
        """The variables that its commands need in addition to the current environment."""
        return {"MUSTER_PYTHON": self.python, "XDG_STATE_HOME": str(self.state)}

    def command(self, argv: Sequence[str]) -> list[str]:
        """Turn a command line of this checkout into the tree's, including a script for sbatch."""
        words = ["env", *(f"{name}={value}" for name, value in self.env.items())]
        return words + [self._own(word) for word in argv]

    def _own(self, word: str) -> str:
        path = Path(word)
        if word == sys.executable:
            return self.python
        if path.is_relative_to(CHECKOUT) and path.relative_to(CHECKOUT).parts[:1] in (
            (folder,) for folder in COMMANDS
        ):
            return str(self.root / path.relative_to(CHECKOUT))
        return word


def add_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--against", metavar="COMMIT", help="the older one, run in turns with this")


@contextmanager
def trees(against: str | None) -> Iterator[list[Tree]]:
    """Provide the trees to compare: the older one first, if it is named, and then this one."""
    with tempfile.TemporaryDirectory(prefix="muster-trees-") as name:
        folder = Path(name)
        made = [] if against is None else [_cloned(against, folder / "older")]
        yield [*made, _with_environment(THIS, CHECKOUT, folder / "this")]


def in_turns(which: Sequence[Tree], times: int, measure: Callable[[Tree], T]) -> dict[str, list[T]]:
    """Return what `measure` finds for each tree, by name, in the order old, new, old, new, ..."""
    found: dict[str, list[T]] = {tree.name: [] for tree in which}
    for _ in range(times):
        for tree in which:
            found[tree.name].append(measure(tree))
    return found


def compared(found: dict[str, list[float]], digits: int = 2) -> dict[str, str]:
    """Return cells of a table: each tree's median with all values, and the ratio of the medians."""
    cells = {}
    for name, values in found.items():
        each = " ".join(f"{value:.{digits}f}" for value in values)
        cells[name] = f"{median(values):.{digits}f} ({each})"
    if len(found) > 1:
        older, this = (median(values) for values in found.values())
        cells["ratio"] = f"{this / older:.3f}"
    return cells


def _cloned(commit: str, folder: Path) -> Tree:
    root = folder / "checkout"
    try:
        for argv in (
            ["clone", "--quiet", "--shared", "--no-checkout", str(CHECKOUT), str(root)],
            ["-C", str(root), "checkout", "--quiet", "--detach", commit],
        ):
            subprocess.run(["git", *argv], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        print(f"error: --against {commit}: {error.stderr.strip()}", file=sys.stderr)
        raise SystemExit(2) from None
    return _with_environment(commit, root, folder)


def _with_environment(name: str, root: Path, folder: Path) -> Tree:
    python = python_path(folder / "environment", root, own_packages())
    folders = [str(root / one) for one in FOLDERS]
    subprocess.run([str(python), "-m", "compileall", "-q", *folders], check=True)
    return Tree(name, root, str(python), folder / "state")
