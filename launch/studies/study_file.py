"""Read a study's file, and make cells of it, each with a command line of its own."""

import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from configs import cli
from configs.raw import alike, hint_for, read_yaml, text_of
from configs.settings.fields import flag
from configs.settings.launch import MAX_NODES
from configs.settings.train import OPERATIONS, TrainConfig
from launch.programs.command_line import CLASSES, setting_names
from launch.studies import grid
from launch.studies.cells import Cell, Sweep, check_cells
from muster.checkout import CHECKOUT
from muster.errors import UsageError, refuse

# The user's texts, which stand beside the measured tables.
TEXTS = ("question", "implementation", "discussion")
# What a report groups its runs by: train/report/data/columns.py.
ROLES = ("x", "series", "reference")
KEYS = ("title", "about", *TEXTS, "base", "grid", "repeats", *ROLES, "collectives")
# Settings of the testbed, not of a run: the rate of its links, and on how many of its nodes another
# program uses the cores.
RATE = "rate"
BUSY = "busy"
OF_TESTBED = (RATE, BUSY)
# A setting of an entry of the grid: the name of its runs in tables and figures. Entries with the
# same name are one series, and so are the runs of one entry.
NAME = "name"
# Columns that follow from settings.
WORKERS = "workers"
BATCH_OF_EACH = "batch_of_each"
SEED = "seed"  # of which each repeat has another, unless the study says otherwise
OWN = CHECKOUT / "configs" / "studies"


def read(path: Path, more: Sequence[str] = (), rate: str | None = None) -> Sweep:
    """Read the study of a file; `more` are flags for all runs, and `rate` is the link rate of all.

    Muster's own studies are found by name, `quick`, and from any folder by their path in Muster.

    Raises:
        UsageError: the file cannot be read, or describes invalid runs; with every problem.
    """
    try:
        raw = read_yaml(path, text_of(path), yaml.load)
    except OSError as error:
        own = OWN / f"{path.stem}.yaml"
        is_absent = isinstance(error, FileNotFoundError | IsADirectoryError)
        names = (Path(path.stem), Path("configs", "studies", own.name))
        if is_absent and own.is_file() and path in names:
            return read(own, more, rate)
        raise UsageError(f"study {path}: {error.strerror}{_own_study(path)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: not a study; it needs a grid")
    refuse(
        (
            f"unknown key {key!r}; {alike(str(key), KEYS) or 'known: ' + ', '.join(KEYS)}"
            for key in raw
            if key not in KEYS
        ),
        where=f"{path}: ",
    )
    refuse(
        f"{path}: {key} must be a text"
        for key in ("title", "about", *TEXTS)
        if isinstance(raw.get(key), list | dict)
    )
    blocks = raw.get("grid") or [{}]
    repeats = raw.get("repeats", 1)
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise UsageError(f"{path}: grid must be a list of settings, each with a value or several")
    if not isinstance(repeats, int) or repeats < 1:
        raise UsageError(
            f"{path}: repeats must be a number of at least 1 (got {reprlib.repr(repeats)})"
        )
    common = raw.get("base") or {}
    if not isinstance(common, dict):
        raise UsageError(f"{path}: base must be settings of all runs (got {reprlib.repr(common)})")
    refuse(
        f"{path}: {key}: expected one value, or in the grid a list of values"
        for block in (common, *blocks)
        for key, value in block.items()
        for entry in (value if isinstance(value, list) and block is not common else [value])
        if isinstance(entry, list | dict)
    )
    grid_keys = dict.fromkeys(key for block in blocks for key in block)
    own_seeds = repeats if repeats > 1 and SEED not in common else 0
    refuse(_given_twice(path, grid_keys, own_seeds, more, rate))
    base = {**common, **({} if rate is None else {RATE: rate})}
    collectives = raw.get("collectives") or []
    if not isinstance(collectives, list) or any(name not in OPERATIONS for name in collectives):
        raise UsageError(f"{path}: collectives must be a list of {', '.join(OPERATIONS)}")
    try:
        grid.refuse_too_many_runs(repeats * sum(map(grid.size_of, blocks)))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    unchecked = list(_cells(base, blocks, repeats, more))
    problems = [line for cell in unchecked for line in _busy_problems(cell.settings)]
    refuse(dict.fromkeys(problems), where=f"{path}: ")
    try:
        cells = check_cells(unchecked)
    except UsageError as error:
        refuse(str(error).splitlines(), where=f"{path}: ")
        raise
    x, series, reference = _roles(raw, path)
    refuse(_role_problems(cells, x, series, reference), where=f"{path}: ")
    title = str(raw.get("title", path.stem))
    about = str(raw.get("about", ""))
    texts = {name: str(raw[name]) for name in TEXTS if raw.get(name)}
    return Sweep(
        path.stem, cells, title, about, texts,
        source=_name_in_reports(path), collectives=tuple(collectives), is_study=True,
        x=x, series=series, reference=reference,
    )  # fmt: skip


def _roles(
    raw: Mapping[str, Any], path: Path
) -> tuple[str | None, tuple[str, ...] | None, Mapping[str, Any] | None]:
    """The x, the series and the reference of a study's file; None for what it does not say.

    Raises:
        UsageError: one of them has another form, or names no column; with every problem.
    """
    x, series, reference = (raw.get(key) for key in ROLES)
    is_list = isinstance(series, list) and all(isinstance(one, str) for one in series)
    is_mapping = isinstance(reference, dict) and not any(
        isinstance(value, list | dict) for value in reference.values()
    )
    problems = []
    if x is not None and not isinstance(x, str):
        problems.append(f"x must be one column, such as workers (got {reprlib.repr(x)})")
    if series is not None and not is_list:
        problems.append(f"series must be a list of columns (got {reprlib.repr(series)})")
    if reference is not None and not is_mapping:
        problems.append(
            "reference must be values of columns, such as {sync: single} "
            f"(got {reprlib.repr(reference)})"
        )
    refuse(problems, where=f"{path}: ")
    names = {"x": [] if x is None else [x], "series": series or [], "reference": reference or {}}
    settings = setting_names(*CLASSES)
    known = {NAME, WORKERS, BATCH_OF_EACH, *OF_TESTBED, *settings}
    for key, columns in names.items():
        for name in columns:
            if (column := _column(name)) not in known:
                hint = hint_for(column, known, problems)
                problems.append(f"{key}: unknown column {name!r}{hint}")
    refuse(problems, where=f"{path}: ")
    return (
        None if x is None else _column(x),
        None if series is None else tuple(map(_column, series)),
        None if reference is None else {_column(key): reference[key] for key in reference},
    )


def _column(name: object) -> str:
    return str(name).replace("-", "_")


def _role_problems(
    cells: Sequence[Cell],
    x: str | None,
    series: Sequence[str] | None,
    reference: Mapping[str, Any] | None,
) -> Iterator[str]:
    """A line if two runs would be one row of the report, or if no run is the reference."""
    for column, value in (reference or {}).items():
        values = dict.fromkeys(str(_value(cell, column)) for cell in cells)
        if str(value) not in values:
            yield f"reference: no run has {column} {value}; known: {', '.join(values)}"
    if series is None:
        return
    rows: dict[Any, Cell] = {}
    columns = [*series, x or WORKERS]
    for cell in cells:
        row = (cell.repeat, *(str(_value(cell, column)) for column in columns))
        other = rows.setdefault(row, cell)
        if other is not cell:
            yield (
                f"series and x do not tell {other.id} and {cell.id} apart; add to series a "
                "setting in which they differ"
            )
            return


def _value(cell: Cell, column: str) -> object:
    """The value of a cell in a column, as far as it is known before the run."""
    if column == NAME:
        return cell.name
    launch = cell.parsed.launch
    train = cell.parsed.train
    if column in (WORKERS, BATCH_OF_EACH):
        width = [str(launch.nodes), str(launch.nproc_per_node)]
        size = (train.local_batch_size, train.batch_size) if train else ()
        return width if column == WORKERS else [*width, *size]
    if column in OF_TESTBED:
        return cell.settings.get(column)
    for part in (train, launch):
        if hasattr(part, column):
            return getattr(part, column)
    return cell.settings.get(column)


def _given_twice(
    path: Path,
    grid_keys: Collection[object],
    own_seeds: int,
    more: Sequence[str],
    rate: str | None,
) -> Iterator[str]:
    """A line for each setting of the grid that a flag after the file sets, too.

    All runs would have the flag's value, but be named by the values of the grid. `own_seeds`: how
    many repeats have seeds of their own.
    """
    flags = {setting.name for setting in cli.words_of(CLASSES, more)[0]}
    if rate is not None:
        flags.add(RATE)
    for key in map(str, grid_keys):
        name = key.replace("-", "_")
        if name in flags:
            problem = f"the grid of {path} has {key} already"
            yield f"{flag(name)}: {problem}; give it in one of the two places"
    if own_seeds and SEED in flags - {*map(str, grid_keys)}:
        yield f"{flag(SEED)}: each of the {own_seeds} repeats of {path} has another; leave it out"


def _name_in_reports(path: Path) -> str:
    """The file's name in reports; a file of Muster's own is named by its path in the checkout."""
    place = path.resolve()
    return str(place.relative_to(CHECKOUT) if place.is_relative_to(CHECKOUT) else path.name)


def _own_study(path: Path) -> str:
    """A hint: the path of Muster's own study of this name, or the names of all its own studies."""
    own = OWN / f"{path.stem}.yaml"
    if own.is_file():
        return f"; did you mean {own}?"
    names = sorted(file.stem for file in OWN.glob("*.yaml"))
    return f"; Muster's own are in {OWN}: {', '.join(names)}"


def _cells(
    base: Mapping[str, Any], blocks: list[Mapping[str, Any]], repeats: int, more: Sequence[str]
) -> Iterator[Cell]:
    """The cells of all runs, unchecked.

    Repeats come last, so that a study that is stopped early has run every point of the grid.
    """
    points = [
        (str(block[NAME]) if NAME in block else None, point)
        for block in blocks
        for point in grid.points({key: block[key] for key in block if key != NAME})
    ]
    for repeat in range(repeats):
        for name, point in points:
            settings = {**base, **point}
            if repeats > 1:
                settings.setdefault(SEED, TrainConfig.seed + repeat)
            flags = [cli.word(key, settings[key]) for key in settings if key not in OF_TESTBED]
            cell = Cell(f"{grid.name_of(point)}_{repeat}", settings, (*flags, *more), repeat, name)
            rate = settings.get(RATE)
            cell.busy = settings.get(BUSY, 0)
            cell.rate = None if rate is None else str(rate)
            yield cell


def _busy_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    busy = settings.get(BUSY, 0)
    nodes = settings.get("nodes", 1)
    if busy not in range(nodes + 1 if isinstance(nodes, int) else MAX_NODES):
        yield f"busy is a number of the {nodes} nodes (got {busy!r})"
    elif busy and settings.get(RATE) is None:
        yield "busy is for nodes of a testbed; give a rate, such as unlimited"
