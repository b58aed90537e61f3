"""Parse a sweep's command into cells, each a command line of launch/submit.py."""

import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from configs.raw import LISTS_SETTINGS, alike
from configs.settings.fields import add_new
from configs.settings.launch import name_problems
from configs.settings.train import TrainElsewhere
from launch.launchers.base import checked_launcher, launcher_name, launcher_of
from launch.programs import user_program
from launch.programs.command_line import CLASSES, CommandLine, setting_names
from launch.programs.own_program import OwnProgram
from launch.programs.user_program import UserProgram
from launch.studies import grid
from muster.errors import UsageError, refuse
from muster.terminal import TIP
from muster.writing import write_json

LONGEST_NAME = 60


# The attributes of a cell that are copied unchanged into its record.
RECORDED = "id settings nodes repeat run_dir name state seconds message place results".split()


@dataclass(eq=False)
class Cell:
    """One run of a sweep, and its results."""

    id: str
    settings: Mapping[str, Any]  # from the grid, perhaps with those common to all runs
    words: tuple[str, ...]  # the arguments of launch/submit.py: flags, and after `--` the program
    parsed: CommandLine = field(init=False)  # the words, once they are checked
    nodes: int | None = None  # from the words, or else a default; None: all of --hosts
    # From a study's file.
    has_all_settings: bool = False  # whether `settings` includes those common to all runs
    repeat: int | None = None
    name: str | None = None  # of its entry in the grid; None: it is named after its settings
    rate: str | None = None  # the link rate of its testbed, such as 1gbit
    busy: int = 0  # number of testbed nodes (the last ones) on which another program runs
    # The results.
    state: str = "waiting"  # or running, done, failed, stopped
    seconds: float = 0.0
    message: str = ""
    place: str | None = None  # its hosts, or its job
    results: dict[str, Any] | None = None

    @property
    def run_dir(self) -> str:
        """The run's folder, within the folder of the sweep."""
        return f"runs/{self.id}"

    def record(self) -> dict[str, Any]:
        """The cell's record, by which a later call recognises the same run.

        A run is the same if its settings, nodes and words are the same. If the settings include
        everything that matters, the record has no words.
        """
        words = None if self.has_all_settings else self.parsed.identity
        return {**{name: getattr(self, name) for name in RECORDED}, "words": words}


@dataclass
class Sweep:
    """The runs of one command, from `--over NAME=VALUE,...` or from a study's file.

    Their states and results are stored in a file of the sweep's folder after each change.
    """

    name: str
    cells: tuple[Cell, ...]
    title: str = ""
    kind: Literal["sweep", "study"] = "sweep"  # the command that continues it
    # Whether the runs are measured: each starts from the beginning, without checkpoints, and none
    # starts after a run that was stopped.
    is_measured: bool = False
    collectives: tuple[str, ...] = ()  # measured before the runs
    flags: Sequence[str] = ()  # of all runs, and of the measurement of collectives
    # For a report: texts and their file, the column on the x axis of figures, the columns that
    # distinguish series, and the column values that select the run with which others are compared.
    about: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)  # question, discussion ...
    texts_before: Mapping[str, str] | None = None  # the texts before the first run
    source: str = ""
    x: str | None = None
    series: tuple[str, ...] | None = None
    reference: Mapping[str, Any] | None = None
    folder: Path = Path()
    cwd: Path = field(default_factory=Path.cwd)  # a sweep in the background leaves this folder
    started_unix_s: float = field(default_factory=time.time)

    @property
    def first(self) -> CommandLine:
        return self.cells[0].parsed

    def require_trainer_packages(self) -> None:
        """Refuse to begin if this machine lacks packages of the trainer, as no run would start.

        Raises:
            UsageError: packages are missing; the message says how to install them.
        """
        first = self.first
        if first.words or self.cells[0].rate is not None or launcher_name(first.launch) != "local":
            return
        program = first.program(Path.cwd())
        assert isinstance(program, OwnProgram)
        refuse(program.lacks(sys.executable))

    @property
    def unfinished(self) -> list[Cell]:
        """The cells whose runs are not done."""
        return [cell for cell in self.cells if cell.state != "done"]

    @property
    def file(self) -> Path:
        """The file of the record: run_files.SWEEP or run_files.STUDY."""
        return self.folder / f"{self.kind}.json"

    def record(self) -> dict[str, Any]:
        """The record of the sweep and all of its cells."""
        fields = ["name", "title", "about", "texts", "texts_before", "source"]
        fields += ["x", "series", "reference"]
        return {
            **{name: getattr(self, name) for name in fields},
            "command": shlex.join(["python", f"launch/{self.kind}.py", *sys.argv[1:]]),
            "started_unix_s": self.started_unix_s,
            "cells": [cell.record() for cell in self.cells],
        }

    def write(self) -> None:
        write_json(self.file, self.record())

    def run_dir(self, cell: Cell) -> Path:
        return self.folder / cell.run_dir

    def log(self, cell: Cell) -> Path:
        """The file with the output of the command that starts the run."""
        return self.folder / "logs" / f"{cell.id}.log"

    def checkpoints(self, cell: Cell) -> Path:
        """The folder of a run's checkpoints, the same each time the sweep is started."""
        return self.folder / "checkpoints" / cell.id


def from_grid(
    over: Sequence[str], flags: Sequence[str], program: Sequence[str], name: str | None
) -> Sweep:
    """Make a sweep with a cell for each combination of values.

    The values are appended to the program's words as flags, unless the words have a placeholder for
    them, as in `lr={lr}`. Without a program, the values are flags of the trainer.

    Raises:
        UsageError: a flag is given twice, or a run would be invalid; every problem at once.
    """
    base, problems = CommandLine.read([*flags, *(["--", *program] if program else [])])
    if not over:
        refuse([*problems, "a sweep needs --over\ntip: add values, such as --over lr=1e-4,3e-4"])
    block = grid.read(over)
    arguments = program[1:] if program else flags
    in_place = grid.placeholder_names(program[1:], block)
    refuse(
        f"--over {name}: {' '.join(program) or 'the command'} already has {word}"
        "\ntip: give it in only one place"
        for name in block
        if name not in in_place
        for word in arguments
        if word.startswith("--") and grid.is_same_flag(word[2:].partition("=")[0], name)
    )
    settings = setting_names(*CLASSES)
    problems += [
        f"--over {name}: Muster's own trainer has no such setting{TIP}"
        + (alike(name.replace("-", "_"), settings) or LISTS_SETTINGS)
        + f"{TIP}your own program goes after --"
        for name in block
        if not program and not any(grid.is_same_flag(name, setting) for setting in settings)
    ]
    if any(line.startswith("--over") for line in problems):
        refuse(problems)
    prefix = base.train.task if base.train else user_program.name_of(base.words)
    points = list(grid.points(block))
    cells = []
    for point, cell_id in zip(points, grid.names_of(points, prefix), strict=True):
        if program:
            words = [*flags, "--", program[0], *grid.with_values(program[1:], point)]
        else:
            words = [*flags, *(f"--{flag}={value}" for flag, value in point.items())]
        cells.append(Cell(cell_id, point, tuple(words)))
    if name is None:
        workers = ",".join(map(str, base.launch.nproc_per_node or ["None"]))
        fixed = [*base.identity, str(base.launch.nodes), workers]
        name = f"{prefix}-{'-'.join(block)}"[: LONGEST_NAME - grid.DIGITS - 1]
        name = f"{name}-{grid.digest([fixed, list(block.items())])}"
    refuse(name_problems("--name ", name))
    return Sweep(name, check_cells(cells), f"sweep {name}")


def from_file(path: Path, flags: Sequence[str], name: str) -> Sweep:
    """The sweep in a file that `muster.map` wrote: {"cells": [{"id": ..., "words": [...]}, ...]}.

    `flags` are put before the words of each cell. The last word of a cell is the folder of a
    pickled function, relative to the file's folder.

    Raises:
        UsageError: a run would be invalid; every problem at once.
    """
    entries = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cells = []
    for entry in entries:
        *words, folder = entry["words"]
        function = str(path.absolute().parent / folder)
        cells.append(Cell(entry["id"], {}, (*flags, *words, function)))
    refuse(name_problems("--name ", name))
    return Sweep(name, check_cells(cells), f"sweep {name}")


def check_cells(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Return the cells if launch/submit.py would accept each of them, as far as is known.

    Raises:
        UsageError: launch/submit.py would refuse a cell; the message lists every problem.
    """
    if not cells:
        raise UsageError("there are no runs to start\ntip: give at least one")
    count = Counter(cell.id for cell in cells)
    problems = [
        f"{name}: two runs have this name\ntip: give each its own name"
        for name in count
        if count[name] > 1
    ]
    refuse([*problems, *_lines(cells, _problems)])
    refuse(_lines(cells, _program_problems))
    return tuple(cells)


def _lines(cells: Sequence[Cell], problems_of: Callable[[Cell], Iterable[str]]) -> Iterator[str]:
    """A line for each cell's problem, with the cell's name; a problem of all cells, only once."""
    by_problem: dict[str, list[Cell]] = {}
    for cell in cells:
        for line in problems_of(cell):
            by_problem.setdefault(line, []).append(cell)
    for line, faulty in by_problem.items():
        is_common = len(faulty) == len(cells) > 1
        yield from [line] if is_common else [f"{cell.id}: {line}" for cell in faulty]


def _program_problems(cell: Cell) -> list[str]:
    """A line for each problem of a cell's program, found by starting its Python."""
    program = cell.parsed.program(Path.cwd())
    launcher = launcher_of(cell.parsed)
    try:
        if isinstance(program, UserProgram):
            is_local = launcher.name == "local"
            program.check(launcher.assume().nodes[0].python, runs_here=is_local)
        elif launcher.sees_python and isinstance(program.run, TrainElsewhere):
            program.check_plugins(launcher.assume().nodes[0].python)
    except UsageError as error:
        return error.problems
    return []


def _problems(cell: Cell) -> list[str]:
    """Parse a cell's words into the cell; return a line for each problem."""
    try:
        refuse(name_problems("", cell.id))
        cell.parsed, problems = CommandLine.read(cell.words)
        cell.nodes = cell.parsed.launch.most_nodes or cell.nodes
    except UsageError as error:
        return error.problems
    checked_launcher(cell.parsed, problems)
    add_new(problems, _sweep_problems(cell.parsed))
    # an earlier run of the sweep may still make the checkpoint; otherwise the run itself refuses
    return [line for line in problems if not line.startswith("--resume ")]


def _sweep_problems(line: CommandLine) -> Iterator[str]:
    """A line for each setting that a run of a sweep cannot have."""
    if line.run.run_id is not None:
        yield "--run-id: each run of a sweep is named after its values\ntip: name the sweep: --name"
    if line.run.checkpoint_dir is not None:
        yield (
            "--checkpoint-dir: each run of a sweep has its own, in the sweep's folder"
            "\ntip: leave it out"
        )
    if line.ssh.setup:
        yield "--setup runs nothing\ntip: use it with muster run, before the sweep"
