"""What other packages add by entry points: launchers, starters, sync modes, compressors, tasks.

    [project.entry-points."muster.compressors"]
    sign = "my_package.sign:build"

Names are read from the packages' metadata; only the one that is chosen is imported. It needs the
standard library alone, of Python 3.10 or newer.
"""

from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from muster.errors import UsageError, text_of

LAUNCHERS = "muster.launchers"
STARTERS = "muster.starters"
MODES = "muster.modes"
COMPRESSORS = "muster.compressors"
TASKS = "muster.tasks"
ENTRIES = "entry_points.txt"  # the file of a package's metadata that names its entry points
GROUPS = (LAUNCHERS, STARTERS, MODES, COMPRESSORS, TASKS)
# Plug-ins that a release of Muster had, and what to use instead.
REMOVED = {
    COMPRESSORS: {"topk": "topk was removed, since models did not learn with it; use powersgd"},
}


def names(group: str) -> list[str]:
    """The names in this group that the packages of this Python add."""
    return sorted({entry.name for entry in _installed(group)})


def every_name() -> list[str]:
    """Group and name of each entry point: `muster.tasks:spirals`."""
    return [f"{group}:{name}" for group in GROUPS for name in names(group)]


def unknown(group: str, name: object, known: str) -> str:
    """The end of a line about an unknown name: the known ones, and what has replaced it."""
    removed = REMOVED.get(group, {}).get(str(name))
    return f"known: {known}; {removed}" if removed else f"known: {known}"


def load(group: str, name: str) -> Any:
    """What the entry point names, or None if there is no such entry point.

    Raises:
        UsageError: two packages add different things of this name, it cannot be imported, or it
            is a module.
    """
    entries = {entry.value: entry for entry in _installed(group) if entry.name == name}
    if not entries:
        return None
    if len(entries) > 1:
        places = ", ".join(f"{entry.value} ({_package(entry)})" for entry in entries.values())
        raise UsageError(f"{group}: several packages add {name!r}: {places}; uninstall all but one")
    (entry,) = entries.values()
    place = f"{group}: {name!r} is {entry.value} of the package {_package(entry)}"
    try:
        build = entry.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{place}, which cannot be loaded: {text_of(error)}") from error
    if isinstance(build, ModuleType):
        raise UsageError(f"{place}, which is a module; name what is in it: MODULE:build")
    return build


def _installed(group: str) -> Iterator[Any]:
    """The entry points of a group; if a package is on the path twice, the first one counts."""
    from importlib.metadata import distributions  # here, since it takes as long as a short command

    for package in distributions():
        with suppress(Exception):  # a package's metadata may be damaged
            entries = [entry for entry in package.entry_points if entry.group == group]
            if entries and _is_imported(package):
                yield from entries


def _is_imported(package: Any) -> bool:
    """Whether `package` is the first of its name on the path."""
    from importlib.metadata import distribution

    first = distribution(package.name)
    return bool(first.read_text(ENTRIES) == package.read_text(ENTRIES))


def _package(entry: Any) -> str:
    return entry.dist.name if entry.dist is not None else "?"
