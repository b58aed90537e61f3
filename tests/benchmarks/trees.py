"""This tree beside an older commit of it: a benchmark runs both in turns on one machine.

How it works: git clones this repository at the other commit into a temporary folder. Each tree gets
an environment of its own, which has that tree and the packages of this environment on its path, so
that each tree's agents and workers are its own, and both start through as many folders. Nothing is
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
FOLDERS = ("configs", "launch", "muster", "train")  # of which a run enters files
COMMANDS = ("launch", "slurm")  # what a command line may name of a tree
THIS = "this tree"


@dataclass(frozen=True)
class Tree:
    """A checkout, and a Python that imports from it."""

    name: str
    root: Path
    python: str
    state: Path  # what it remembers of nodes: not where the user's own runs do

    @property
    def env(self) -> dict[str, str]:
        """What its commands need, beside the environment that there is."""
        return {"MUSTER_PYTHON": self.python, "XDG_STATE_HOME": str(self.state)}

    def command(self, argv: Sequence[str]) -> list[str]:
        """A command line of this checkout as one of the tree's, also where sbatch reads it."""
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
    """The older tree first, if one is named."""
    with tempfile.TemporaryDirectory(prefix="muster-trees-") as name:
        folder = Path(name)
        made = [] if against is None else [_cloned(against, folder / "older")]
        yield [*made, _with_environment(THIS, CHECKOUT, folder / "this")]


def in_turns(which: Sequence[Tree], times: int, measure: Callable[[Tree], T]) -> dict[str, list[T]]:
    """What `measure` finds of each tree, by its name: old, new, old, new and so on."""
    found: dict[str, list[T]] = {tree.name: [] for tree in which}
    for _ in range(times):
        for tree in which:
            found[tree.name].append(measure(tree))
    return found


def compared(found: dict[str, list[float]], digits: int = 2) -> dict[str, str]:
    """Cells of a table: the median of each tree with all that it is of, and their ratio."""
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
