"""Read a study's file, and turn it into cells, each with its own command line."""

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

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
from muster.terminal import TIP

# The user's texts, which appear beside the measured tables.
TEXTS = ("question", "implementation", "discussion")
# The keys by which a report groups its runs: see train/report/data/columns.py.
ROLES = ("x", "series", "reference")
# Settings of the testbed, not of a run: the rate of its links, and the number of its nodes on which
# another program uses a core.
RATE = "rate"
BUSY = "busy"
TESTBED_SETTINGS = (RATE, BUSY)
# A setting in an entry of the grid: the name of its runs in tables and figures. Entries with the
# same name form one series, as do the runs of one entry.
NAME_KEY = "name"
# Columns that are derived from settings.
WORKERS = "workers"
BATCH_OF_EACH = "batch_of_each"
SEED = "seed"  # each repeat has a different one, unless the study sets it
BUNDLED_STUDIES = CHECKOUT / "configs" / "studies"
SCALAR = str | int | float | bool | None
COLLECTIVE = Annotated[str, Meta(pattern=rf"\A({'|'.join(OPERATIONS)})\Z")]
# The keys of a study's file, the type of each, and what its value must be.
FORMS: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("title", "about", *TEXTS), (SCALAR, "a text")),
    "base": (dict | None, "settings of all runs (got {got})"),
    "grid": (list[dict[Any, Any]] | None, "a list of settings, each with a value or several"),
    "repeats": (Annotated[int, Meta(ge=1)], "a number of at least 1 (got {got})"),
    "x": (str | None, "one column, such as workers (got {got})"),
    "series": (list[str] | None, "a list of columns (got {got})"),
    "reference": (
        dict[Any, SCALAR] | None,
        "values of columns, such as {{sync: single}} (got {got})",
    ),
    "collectives": (list[COLLECTIVE] | None, f"a list of {', '.join(OPERATIONS)}"),
}


def read(path: Path, more: Sequence[str] = (), rate: str | None = None) -> Sweep:
    """Read a study from its file; `more` are flags for all runs, `rate` is their link rate.

    Muster's own studies are found by name, such as `quick`, or, from any folder, by their path in
    Muster.

    Raises:
        UsageError: the file cannot be read, or describes invalid runs; all problems are listed.
    """
    own = BUNDLED_STUDIES / f"{path.stem}.yaml"
    names = (Path(path.stem), Path("configs", "studies", own.name))
    if path in names and own.is_file() and not path.is_file():
        path = own
    raw = _loaded(path)
    with _named(path):
        refuse(_wrong_keys(raw))
        common = raw.get("base") or {}
        blocks = raw.get("grid") or [{}]
        repeats = raw.get("repeats", 1)
        refuse(_several_values(common, blocks))
    refuse(_set_twice(path, common, blocks, repeats, more, rate))
    base = common if rate is None else {**common, RATE: rate}
    with _named(path):
        grid.refuse_too_many_runs(repeats * sum(map(grid.size_of, blocks)))
        cells = list(_cells(base, blocks, repeats, more))
        refuse(dict.fromkeys(line for cell in cells for line in _busy_problems(cell.settings)))
        study = Sweep(
            path.stem, check_cells(cells), str(raw.get("title", path.stem)), kind="study",
            is_measured=True, collectives=tuple(raw.get("collectives") or ()), flags=more,
            about=str(raw.get("about", "")), source=_name_in_reports(path),
            texts={name: str(raw[name]) for name in TEXTS if raw.get(name)},
            **_roles(raw),
        )  # fmt: skip
        refuse(_role_problems(study))
    return study


def _loaded(path: Path) -> dict[Any, Any]:
    """The keys and values of a study's file, unchecked."""
    try:
        raw = read_yaml(path, text_of(path), yaml.load)
    except OSError as error:
        raise UsageError(f"study {path}: {error.strerror}{_own_study(path)}") from None
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: not a study: expected keys such as grid")
    return raw


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A context that puts the name of the file before each line of a refusal."""
    try:
        yield
    except UsageError as error:
        refuse(error.problems, where=f"{path}: ")


def _wrong_keys(raw: Mapping[Any, Any]) -> Iterator[str]:
    """A line for each key that is unknown, or whose value has the wrong form."""
    for key, value in raw.items():
        if key not in FORMS:
            similar = alike(str(key), FORMS)
            hint = similar or f"choose from {', '.join(FORMS)}"
            yield f"unknown key {key!r}{TIP}{hint}"
            continue
        form, text = FORMS[key]
        try:
            msgspec.convert(value, form)
        except msgspec.ValidationError:
            yield f"{key} must be {text.format(got=reprlib.repr(value))}"


def _several_values(
    common: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """A line for each setting that has a list or a mapping where one value is expected."""
    for block in (common, *blocks):
        for key, value in block.items():
            entries = value if isinstance(value, list) and block is not common else [value]
            if any(isinstance(entry, list | dict) for entry in entries):
                yield f"{key}: expected one value, or in the grid a list of values"


def _roles(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The x, the series and the reference of a study's file; None for each that it does not set.

    Raises:
        UsageError: one of them does not name a column; all problems are listed.
    """
    x, series, reference = (raw.get(role) for role in ROLES)
    names = {"x": [] if x is None else [x], "series": series or [], "reference": reference or {}}
    known = {NAME_KEY, WORKERS, BATCH_OF_EACH, *TESTBED_SETTINGS, *setting_names(*CLASSES)}
    problems: list[str] = []
    for role, columns in names.items():
        for name in columns:
            if (column := _column(name)) not in known:
                hint = hint_for(column, known, problems)
                problems.append(f"{role}: unknown column {name!r}{hint}")
    refuse(problems)
    return {
        "x": None if x is None else _column(x),
        "series": None if series is None else tuple(map(_column, series)),
        "reference": reference and {_column(key): reference[key] for key in reference},
    }


def _column(name: object) -> str:
    return str(name).replace("-", "_")


def _role_problems(study: Sweep) -> Iterator[str]:
    """A line if two runs would be the same row of the report, or if no run is the reference."""
    for column, value in (study.reference or {}).items():
        values = dict.fromkeys(str(_value(cell, column)) for cell in study.cells)
        if str(value) not in values:
            yield f"reference: no run has {column} {value}{TIP}choose from {', '.join(values)}"
    if study.series is None:
        return
    rows: dict[Any, Cell] = {}
    columns = [*study.series, study.x or WORKERS]
    for cell in study.cells:
        row = (cell.repeat, *(str(_value(cell, column)) for column in columns))
        other = rows.setdefault(row, cell)
        if other is not cell:
            yield (
                f"{other.id} and {cell.id} have the same series and x"
                "\ntip: to series, add a setting in which they differ"
            )
            return


def _value(cell: Cell, column: str) -> object:
    """The value of a cell in a column, as far as it is known before the run."""
    if column == NAME_KEY:
        return cell.name
    launch = cell.parsed.launch
    train = cell.parsed.train
    if column in (WORKERS, BATCH_OF_EACH):
        width = [str(launch.nodes), str(launch.nproc_per_node)]
        size = (train.local_batch_size, train.batch_size) if train else ()
        return width if column == WORKERS else [*width, *size]
    if column in TESTBED_SETTINGS:
        return cell.settings.get(column)
    for part in (train, launch):
        if hasattr(part, column):
            return getattr(part, column)
    return cell.settings.get(column)


def _set_twice(
    path: Path,
    common: Mapping[object, Any],
    blocks: Sequence[Mapping[object, Any]],
    repeats: int,
    more: Sequence[str],
    rate: str | None,
) -> Iterator[str]:
    """A line for each setting of the grid that a flag after the file also sets.

    All runs would have the flag's value, but would be named after the values of the grid.
    """
    flags = {setting.name for setting in cli.words_of(CLASSES, more)[0]}
    if rate is not None:
        flags.add(RATE)
    keys = dict.fromkeys(str(key) for block in blocks for key in block)
    for key in keys:
        name = key.replace("-", "_")
        if name in flags:
            problem = f"the grid of {path} already has {key}"
            yield f"{flag(name)}: {problem}\ntip: give it in only one place"
    if repeats > 1 and SEED in flags and SEED not in {*common, *keys}:
        yield (
            f"{flag(SEED)}: the {repeats} repeats of {path} have different seeds\ntip: leave it out"
        )


def _name_in_reports(path: Path) -> str:
    """The file's name in reports; a file of Muster's own is named by its path in the checkout."""
    place = path.resolve()
    return str(place.relative_to(CHECKOUT) if place.is_relative_to(CHECKOUT) else path.name)


def _own_study(path: Path) -> str:
    """A hint: the path of Muster's own study of this name, or the names of all its own studies."""
    own = BUNDLED_STUDIES / f"{path.stem}.yaml"
    if own.is_file():
        return f"\ntip: did you mean {own}?"
    names = sorted(file.stem for file in BUNDLED_STUDIES.glob("*.yaml"))
    return f"{TIP}Muster's own studies are in {BUNDLED_STUDIES}: {', '.join(names)}"


def _cells(
    base: Mapping[str, Any], blocks: list[Mapping[str, Any]], repeats: int, more: Sequence[str]
) -> Iterator[Cell]:
    """The cells of all runs, unchecked.

    Repeats come last: every point of the grid runs once before any point is repeated.
    """
    points = [
        (str(block[NAME_KEY]) if NAME_KEY in block else None, point)
        for block in blocks
        for point in grid.points({key: block[key] for key in block if key != NAME_KEY})
    ]
    for repeat in range(repeats):
        for name, point in points:
            settings = {**base, **point}
            if repeats > 1:
                settings.setdefault(SEED, TrainConfig.seed + repeat)
            flags = [
                cli.word(key, settings[key]) for key in settings if key not in TESTBED_SETTINGS
            ]
            rate = settings.get(RATE)
            yield Cell(
                f"{grid.name_of(point)}_{repeat}", settings, (*flags, *more),
                nodes=1, has_all_settings=True, repeat=repeat, name=name,
                rate=None if rate is None else str(rate), busy=settings.get(BUSY, 0),
            )  # fmt: skip


def _busy_problems(settings: Mapping[str, Any]) -> Iterator[str]:
    busy = settings.get(BUSY, 0)
    nodes = settings.get("nodes", 1)
    if busy not in range(nodes + 1 if isinstance(nodes, int) else MAX_NODES):
        yield f"busy must be a number from 0 to {nodes}, the number of nodes (got {busy!r})"
    elif busy and settings.get(RATE) is None:
        yield "busy has an effect only on a testbed\ntip: give a rate, such as unlimited"
