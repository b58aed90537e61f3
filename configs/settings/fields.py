"""The parts of one setting, checks that all settings share, and lines about their problems."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import Field, field, fields
from typing import Any, ClassVar

from configs import plugins
from muster import entry_points
from muster.errors import refuse

# In a line about a problem: a flag, and a setting of a file, `FILE:LINE: name`.
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
SETTING_OF_FILE = re.compile(r".+?:\d+: (\w+)")
MIN_PORT, MAX_PORT = 1024, 65535  # lower ports are for root, and the courses forbid them


def setting(default: Any, help: str, **more: Any) -> Any:
    """Make a field with the text that --help shows; `aliases` are further flags for it.

    --help leaves out settings that are `internal`. A value may have a limit: `least`, `positive`,
    `port`, or `share`, which is at least 0 and below 1. With `files`, it is either the default or
    the name of a plug-in in that folder. None is always valid. With `path`, a text may be a path,
    and may begin with `~`, as a Path may; if `path` is a function, it tells whether a text is a
    path, seen from a folder. In muster.toml a path is relative to the file.

    A setting with several values has them in one text, separated by `between`; in muster.toml they
    may be a list. With `adds`, its values are added to those of a file or a cluster.
    """
    return field(default=default, metadata={"help": help, **more})


def by_name(*classes: type) -> dict[str, Field[Any]]:
    """The settings of these classes, by name."""
    return {item.name: item for cls in classes for item in fields(cls)}


def flag(name: str) -> str:
    """The spelling of a field on the command line."""
    return "--" + name.replace("_", "-")


def add_new(problems: list[str], more: Iterable[str]) -> None:
    """Add to `problems` the lines of `more` that are about other settings.

    A setting that is wrong, or was misspelt, may make others look wrong.
    """
    named = named_in(problems)
    problems += [line for line in more if not named & named_in([line])]


def named_in(problems: Iterable[str]) -> set[str]:
    """The flags that problems are about; a line about a file names its settings without dashes."""
    flags: set[str] = set()
    for line in problems:
        flags |= set(FLAG.findall(line))
        if of_file := SETTING_OF_FILE.match(line):
            flags.add(flag(of_file[1]))
    return flags


def applying(rules: Iterable[tuple[object, str]]) -> Iterator[str]:
    """The lines of `rules`, pairs of a condition and a line, whose condition is true."""
    return (line for condition, line in rules if condition)


class Config:
    """The base of dataclasses of settings: a wrong value is refused on creation."""

    asks_plugins_here: ClassVar[bool] = True  # this Python has the workers' modes and tasks

    def __post_init__(self) -> None:
        if all(getattr(self, item.name) == item.default for item in fields(self)):  # type: ignore[arg-type]
            return  # the defaults are valid
        problems = [*self._beyond_limits()]
        add_new(problems, self._problems())
        refuse(problems)

    def _problems(self) -> Iterator[str]:
        """A line for each problem beyond the limits of single values."""
        yield from ()

    def _beyond_limits(self) -> Iterator[str]:
        for item in fields(self):  # type: ignore[arg-type]  # each subclass is a dataclass
            name = flag(item.name)
            value = getattr(self, item.name)
            limits = item.metadata
            if value is None:
                continue
            if "least" in limits:
                yield from too_low(item.name, value, limits["least"])
            if "port" in limits and not MIN_PORT <= value <= MAX_PORT:
                yield f"{name} must be between {MIN_PORT} and {MAX_PORT} (got {value})"
            if "positive" in limits and not 0 < value < math.inf:
                yield f"{name} must be a finite number above 0 (got {value})"
            if "share" in limits and not 0 <= value < 1:
                yield f"{name} must be at least 0 and below 1 (got {value})"
            if "files" in limits:
                yield from self._plugin_problems(item, value)

    def _plugin_problems(self, item: "Field[Any]", value: str) -> Iterator[str]:
        """A line if `value` is not a plug-in; another Python may check plug-ins of workers."""
        package = item.metadata["files"]
        is_checked_here = self.asks_plugins_here or package not in plugins.WORKERS_PLUGINS
        if value != item.default and is_checked_here and not plugins.is_known(package, value):
            values = ", ".join(known_values(item))
            known = entry_points.unknown(plugins.GROUPS[package], value, values)
            yield f"{flag(item.name)}: unknown {value!r}{known}"


def known_values(item: "Field[Any]") -> list[str]:
    """The values of a setting that names a plug-in; nothing is imported for them."""
    if "files" not in item.metadata:
        return []
    names = plugins.names(item.metadata["files"])
    return names if item.default in names else [str(item.default), *names]


def too_low(name: str, value: float, least: float) -> Iterator[str]:
    """A line if the setting `name` is below `least`, or not finite."""
    if not least <= value < math.inf:  # isfinite() fails on a number of 400 digits
        yield f"{flag(name)} must be at least {least} (got {value})"
