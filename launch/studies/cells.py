"""Parse a sweep's command into cells, each a command line of launch/submit.py."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.raw import alike
from configs.settings.fields import add_new
from configs.settings.launch import name_problems
from configs.settings.train import TrainElsewhere
from launch.launchers.base import checked_launcher, launcher_name, launcher_of
from launch.programs import user_program
from launch.programs.command_line import CLASSES, CommandLine, setting_names
from launch.programs.own_program import OwnProgram
from launch.programs.user_program import UserProgram
from launch.studies import grid
from muster import run_files
from muster.errors import UsageError, refuse
from muster.writing import write_json

LONGEST_NAME = 60


# Of a cell, what is written down as it is.
RECORDED = "id settings nodes repeat run_dir name state seconds message place results".split()


@dataclass(eq=False)
class Cell:
    """One run of a study or sweep, and what came of it."""

    id: str
    settings: Mapping[str, Any]  # of the grid, and for a study also those common to all runs
    words: tuple[str, ...]  # the arguments of launch/submit.py: flags, and after `--` the program
    parsed: CommandLine = field(init=False)  # those words, once they are checked
    # Of a study only.
    repeat: int | None = None
    name: str | None = None  # of its entry; None: named by its settings
    rate: str | None = None  # the link rate of the testbed for it, such as 1gbit
    busy: int = 0  # the last nodes of its testbed, on which another program runs
    # What came of it.
    state: str = "waiting"  # or running, done, failed, stopped
    seconds: float = 0.0
    message: str = ""
    place: str | None = None  # its hosts, or its job
    results: dict[str, Any] | None = None

    @property
    def nodes(self) -> int | None:
        """The number of nodes that it asks for; None: all of --hosts."""
        asked = self.parsed.launch.most_nodes
        return asked or (None if self.repeat is None else 1)

    @property
    def run_dir(self) -> str:
        """Within the folder of the study or sweep."""
        return f"runs/{self.id}"

    def record(self) -> dict[str, Any]:
        """What is written down of it; of a study the settings are all that makes a run another."""
        words = self.parsed.what_runs if self.repeat is None else None
        return {**{name: getattr(self, name) for name in RECORDED}, "words": words}


@dataclass
class Sweep:
    """All runs of one command: of `--over NAME=VALUE,...`, or of a study's file.

    What came of them is in a file of its folder, which is written again after each change.
    """

    name: str
    cells: tuple[Cell, ...]
    title: str = ""
    about: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)  # of a study: question, discussion ...
    texts_before: Mapping[str, str] | None = None  # those from before the first of its runs
    source: str = ""  # of a study: its file
    collectives: tuple[str, ...] = ()  # of a study: measured first, for the model of cost
    is_study: bool = False
    folder: Path = Path()
    started_unix_s: float = field(default_factory=time.time)

    @property
    def first(self) -> CommandLine:
        return self.cells[0].parsed

    def refuse_lacking(self) -> None:
        """Refuse to begin, on this machine, where the trainer lacks packages: no run would start.

        Raises:
            UsageError: it does; the message says what installs them.
        """
        first = self.first
        if first.words or self.cells[0].rate is not None or launcher_name(first.launch) != "local":
            return
        program = first.program(Path.cwd())
        assert isinstance(program, OwnProgram)
        refuse(program.lacks(sys.executable))

    @property
    def file(self) -> Path:
        """The record."""
        return self.folder / (run_files.STUDY if self.is_study else run_files.SWEEP)

    def record(self) -> dict[str, Any]:
        """What is written down of it."""
        script = "launch/study.py" if self.is_study else "launch/sweep.py"
        fields = ("name", "title", "about", "texts", "texts_before", "source")
        return {
            **{name: getattr(self, name) for name in fields},
            "command": shlex.join(["python", script, *sys.argv[1:]]),
            "started_unix_s": self.started_unix_s,
            "cells": [one.record() for one in self.cells],
        }

    def write(self) -> None:
        write_json(self.file, self.record())

    def run_dir(self, cell: Cell) -> Path:
        return self.folder / cell.run_dir

    def log(self, cell: Cell) -> Path:
        """What launching the run printed."""
        return self.folder / "logs" / f"{cell.id}.log"

    def checkpoints(self, cell: Cell) -> Path:
        """Of a run, through all calls of the sweep."""
        return self.folder / "checkpoints" / cell.id


def from_grid(
    over: Sequence[str], flags: Sequence[str], program: Sequence[str], name: str | None
) -> Sweep:
    """A cell for each combination, which is appended to the words of the program or our trainer.

    Raises:
        UsageError: a flag is given twice, or a run would be invalid; every problem at once.
    """
    base, problems = CommandLine.read([*flags, *(["--", *program] if program else [])])
    if not over:
        refuse([*problems, "a sweep needs --over NAME=VALUE,VALUE, such as --over lr=1e-4,3e-4"])
    block = grid.read(over)
    own = program[1:] if program else flags
    refuse(
        f"--over {name}: {' '.join(program) or 'the command'} has {word} already; give it in one "
        "of the two places"
        for name in block
        for word in own
        if word.startswith("--") and grid.alike(word[2:].partition("=")[0], name)
    )
    known = setting_names(*CLASSES)
    problems += [
        f"--over {name}: the trainer that comes with Muster has no such setting; "
        + (alike(name.replace("-", "_"), known) or f"known: {', '.join(sorted(known))}")
        + "; a program of your own follows after --"
        for name in block
        if not program and not any(grid.alike(name, one) for one in known)
    ]
    if any(line.startswith("--over") for line in problems):
        refuse(problems)
    prefix = base.train.task if base.train else user_program.name_of(base.words)
    points = list(grid.points(block))
    cells = []
    for point, cell_id in zip(points, grid.names_of(points, prefix), strict=True):
        if program:
            values = [word for one, value in point.items() for word in (f"--{one}", value)]
            words = [*flags, "--", *program, *values]
        else:
            words = [*flags, *(f"--{one}={value}" for one, value in point.items())]
        cells.append(Cell(cell_id, point, tuple(words)))
    if name is None:
        workers = ",".join(map(str, base.launch.nproc_per_node or ["None"]))
        fixed = [*base.what_runs, str(base.launch.nodes), workers]
        name = f"{prefix}-{'-'.join(block)}"[: LONGEST_NAME - grid.DIGITS - 1]
        name = f"{name}-{grid.digest([fixed, list(block.items())])}"
    refuse(name_problems("--name ", name))
    return Sweep(name, checked(cells), f"sweep {name}")


def from_file(path: Path, flags: Sequence[str], name: str) -> Sweep:
    """The cells of a file that `muster.map` wrote: {"cells": [{"id": ..., "words": [...]}, ...]}.

    `flags` come before the words of each, of which the last is the folder of a function, relative
    to the file's.

    Raises:
        UsageError: no run could be like that; every problem at once.
    """
    raw = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = []
    for one in raw:
        *words, folder = one["words"]
        function = str(path.absolute().parent / folder)
        cells.append(Cell(one["id"], {}, (*flags, *words, function)))
    refuse(name_problems("--name ", name))
    return Sweep(name, checked(cells), f"sweep {name}")


def checked(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells, if launch/submit.py would accept each, as far as that is known here.

    Raises:
        UsageError: it would not; every problem at once.
    """
    if not cells:
        raise UsageError("a sweep without runs; give it at least one")
    count = Counter(cell.id for cell in cells)
    problems = [
        f"{one}: two runs of this name; give each another" for one in count if count[one] > 1
    ]
    refuse([*problems, *_lines(cells, _problems)])
    refuse(_lines(cells, _of_program))
    return tuple(cells)


def _lines(cells: Sequence[Cell], problems_of: Callable[[Cell], Iterable[str]]) -> Iterator[str]:
    """A line for each problem: once for what is wrong with all cells, else with the cell's name."""
    wrong: dict[str, list[Cell]] = {}  # by problem
    for cell in cells:
        for line in problems_of(cell):
            wrong.setdefault(line, []).append(cell)
    for line, those in wrong.items():
        of_all = len(those) == len(cells) > 1
        yield from [line] if of_all else [f"{cell.id}: {line}" for cell in those]


def _of_program(cell: Cell) -> list[str]:
    """A line for each problem of what a cell runs, for which a Python is asked."""
    program, launcher = cell.parsed.program(Path.cwd()), launcher_of(cell.parsed)
    try:
        if isinstance(program, UserProgram):
            is_local = launcher.name == "local"
            program.check(launcher.assume().nodes[0].python, runs_here=is_local)
        elif launcher.sees_python and isinstance(program.run, TrainElsewhere):
            program.check_plugins(launcher.assume().nodes[0].python)
    except UsageError as error:
        return str(error).splitlines()
    return []


def _problems(cell: Cell) -> list[str]:
    """A line for each problem of a cell, which gets the settings of its words."""
    try:
        refuse(name_problems("", cell.id))
        cell.parsed, problems = CommandLine.read(cell.words)
    except UsageError as error:
        return str(error).splitlines()
    checked_launcher(cell.parsed, problems)
    add_new(problems, _of_sweep(cell.parsed))
    # an earlier run may still make the checkpoint; later the run itself refuses a missing one
    return [line for line in problems if not line.startswith("--resume ")]


def _of_sweep(one: CommandLine) -> Iterator[str]:
    if one.run.run_id is not None:
        yield "--run-id: each run is named by its values; --name names the sweep"
    if one.run.checkpoint_dir is not None:
        yield "--checkpoint-dir: each run has one of its own, in the sweep's folder"
    if one.ssh.setup:
        yield "--setup runs nothing; give it to muster run, before the sweep"
