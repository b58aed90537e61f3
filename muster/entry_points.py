"""Entry points of other packages: launchers, starters, sync modes, compressors and tasks.

    [project.entry-points."muster.compressors"]
    sign = "my_package.sign:build"

Names are read from the packages' metadata; only the chosen plug-in is imported. This file needs
only the standard library of Python 3.10 or newer.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from muster.errors import UsageError, text_of
from muster.terminal import TIP

LAUNCHERS = "muster.launchers"
STARTERS = "muster.starters"
MODES = "muster.modes"
COMPRESSORS = "muster.compressors"
TASKS = "muster.tasks"
ENTRIES = "entry_points.txt"  # the file of a package's metadata that names its entry points
GROUPS = (LAUNCHERS, STARTERS, MODES, COMPRESSORS, TASKS)
# What an entry point of each group must refer to, whether that is a class (None: either will do),
# and an attribute that it must have.
KINDS = {
    LAUNCHERS: ("a class derived from Launcher", True, "watcher"),
    STARTERS: ("an instance of a class derived from Starter", False, "commands"),
    MODES: ("a class derived from GradSync", True, "wrap"),
    COMPRESSORS: ("a class derived from BucketHook", True, "send"),
    TASKS: ("a class derived from Task, or a function that returns a Task", None, "__call__"),
}
# Plug-ins that a release of Muster had, and what to use instead.
REMOVED = {
    COMPRESSORS: {
        "int8": "int8 was removed\ntip: use bf16, or powersgd to send fewer bytes",
        "topk": "topk was removed because models did not learn with it\ntip: use powersgd",
    },
}


def names(group: str) -> list[str]:
    """The names that the packages of this Python add to a group."""
    return sorted({entry.name for entry in _installed(group)})


def every_name() -> list[str]:
    """Group and name of each entry point: `muster.tasks:spirals`."""
    return [f"{group}:{name}" for group in GROUPS for name in names(group)]


def unknown(group: str, name: object, known: str) -> str:
    """The end of a line about an unknown name: what has replaced it, or the known names."""
    removed = REMOVED.get(group, {}).get(str(name))
    return f"; {removed}" if removed else f"{TIP}choose from {known}"


def load(group: str, name: str) -> Any:
    """The object that an entry point refers to; None if there is no such entry point.

    Raises:
        UsageError: two packages add different things under one name, its module cannot be imported,
            or it is not what the group is for.
    """
    entries = {entry.value: entry for entry in _installed(group) if entry.name == name}
    if not entries:
        return None
    if len(entries) > 1:
        places = ", ".join(f"{entry.value} ({_package(entry)})" for entry in entries.values())
        raise UsageError(
            f"{group}: several packages provide {name!r}: {places}"
            "\ntip: uninstall all but one of them"
        )
    (entry,) = entries.values()
    place = f"{group}: {name!r} is {entry.value} from the package {_package(entry)}"
    try:
        build = entry.load()
    except (Exception, SystemExit) as error:  # a package's module may fail in any way
        why = f"{type(error).__name__}: {' '.join(text_of(error).split())}"
        raise UsageError(f"{place}, which cannot be loaded: {why}") from error
    kind, is_class, attribute = KINDS[group]
    if not hasattr(build, attribute) or is_class not in (None, isinstance(build, type)):
        found = "a class" if isinstance(build, type) else f"of type {type(build).__name__}"
        raise UsageError(f"{place}, which is {found}, but must be {kind}")
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
