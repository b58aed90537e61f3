"""A study's file says what to run; here it becomes cells, each a command line of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from configs import cli
from configs.settings.bench import OPERATIONS
from configs.settings.launch import LaunchConfig, Nodes, SlurmConfig, SshConfig
from configs.settings.train import TrainConfig
from launch.studies import grid
from muster.errors import UsageError, refuse

KEYS = ("title", "about", "base", "grid", "repeats", "collectives")
# Of the study, not of a run: the link rate of the testbed that its cells are to run on, and on how
# many of its nodes another program takes its share of the cores.
RATE, BUSY = "rate", "busy"
OF_TESTBED = (RATE, BUSY)
# Of an entry of the grid: what its runs are called in tables and figures. Entries of one name are
# one series, as the runs of one entry are.
NAME = "name"


@dataclass(frozen=True)
class Cell:
    """One run: its settings, and which repeat of them it is."""

    id: str
    settings: Mapping[str, Any]
    repeat: int
    name: str = ""  # of its entry; empty: it is called by its settings

    @property
    def nodes(self) -> int:
        return int(Nodes(self.settings.get("nodes", 1)))

    @property
    def rate(self) -> str | None:
        """The link rate it asks for, such as 1gbit."""
        rate = self.settings.get(RATE)
        return None if rate is None else str(rate)

    @property
    def busy(self) -> int:
        """Nodes of its testbed, the last ones, on which another program runs."""
        return int(self.settings.get(BUSY, 0))

    def flags(self) -> list[str]:
        """The settings as launch/submit.py takes them."""
        return [
            word
            for name, value in self.settings.items()
            if name not in OF_TESTBED
            for word in _flag(name, value)
        ]


@dataclass(frozen=True)
class Study:
    """What one file of configs/studies/ says."""

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]
    collectives: tuple[str, ...] = ()  # measured before the runs, for the model of cost


def read(path: Path, rate: str | None = None) -> Study:
    """The study of a file; with `rate`, its cells run on a testbed of that link rate.

    Raises:
        UsageError: it cannot be read, or says what no run could be; every problem at once.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: not a study; it needs a grid")
    refuse(
        (f"unknown key {key!r}; known: {', '.join(KEYS)}" for key in raw if key not in KEYS),
        where=f"{path}: ",
    )
    blocks, repeats = raw.get("grid") or [{}], raw.get("repeats", 1)
    if not isinstance(blocks, list) or not all(isinstance(one, dict) for one in blocks):
        raise UsageError(f"{path}: grid must be a list of settings, each with a value or several")
    if not isinstance(repeats, int) or repeats < 1:
        raise UsageError(f"{path}: repeats must be a number of at least 1 (got {repeats!r})")
    refuse(_name_problems(blocks), where=f"{path}: ")
    base = {**(raw.get("base") or {}), **({} if rate is None else {RATE: rate})}
    cells = tuple(_cells(base, blocks, repeats))
    collectives = raw.get("collectives") or []
    if not isinstance(collectives, list):
        raise UsageError(f"{path}: collectives must be a list of {', '.join(OPERATIONS)}")
    refuse([*_problems(cells), *_unknown(collectives)], where=f"{path}: ")
    title, about = str(raw.get("title", path.stem)), str(raw.get("about", ""))
    return Study(path.stem, title, about, cells, tuple(collectives))


def _unknown(collectives: list[Any]) -> Iterator[str]:
    for name in collectives:
        if name not in OPERATIONS:
            yield f"collectives: unknown {name!r}; known: {', '.join(OPERATIONS)}"


def _name_problems(blocks: list[Mapping[str, Any]]) -> Iterator[str]:
    for name in (block[NAME] for block in blocks if NAME in block):
        if not isinstance(name, str) or not name.strip():
            yield f"{NAME} must be a text, such as 'Task 2a: gather and scatter' (got {name!r})"


def _cells(
    base: Mapping[str, Any], blocks: list[Mapping[str, Any]], repeats: int
) -> Iterator[Cell]:
    """Repeats come last, so that a study that is cut short has seen every cell."""
    points = [
        (str(block.get(NAME, "")), point)
        for block in blocks
        for point in grid.points({key: block[key] for key in block if key != NAME})
    ]
    for repeat in range(repeats):
        for name, point in points:
            settings = {**base, **point}
            if repeats > 1 and "seed" not in settings:
                settings["seed"] = TrainConfig().seed + repeat
            yield Cell(f"{grid.name_of(point)}_{repeat}", settings, repeat, name)


def _flag(name: str, value: Any) -> list[str]:
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{dashed}" if value else f"--no-{dashed}"]
    return [f"--{dashed}={value}"]


def _busy_problems(cell: Cell) -> Iterator[str]:
    busy = cell.settings.get(BUSY, 0)
    if not isinstance(busy, int) or busy < 0:
        yield f"{cell.id}: busy is a number of nodes (got {busy!r})"
    elif busy > 1 and isinstance(nodes := cell.settings.get("nodes", 1), int) and busy > nodes:
        yield f"{cell.id}: busy is {busy}, but it has {nodes} nodes; give at most so many"
    elif busy and cell.rate is None:
        yield f"{cell.id}: busy is for nodes of a testbed; give a rate, such as unlimited"


def _problems(cells: tuple[Cell, ...]) -> Iterator[str]:
    """What launch/submit.py would refuse, before the first run of many."""
    seen: set[str] = set()
    for cell in cells:
        if cell.id in seen:
            yield f"{cell.id}: two cells of the grid are the same"
        seen.add(cell.id)
        yield from _busy_problems(cell)
        if cell.repeat:
            continue
        classes = [LaunchConfig, SshConfig, SlurmConfig, TrainConfig]
        try:
            cli.parse(classes, cell.flags(), prog="", description="")
        except UsageError as error:
            yield from (f"{cell.id}: {line}" for line in str(error).splitlines())
