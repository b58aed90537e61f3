"""Which settings the lines of problems are about; a wrong setting may make others look wrong."""

import re
from collections.abc import Iterable

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OF_FILE = re.compile(r".+?:\d+: (\w+)")  # FILE:LINE: name


def flag(name: str) -> str:
    """The spelling of a field on the command line."""
    return "--" + name.replace("_", "-")


def add_new(problems: list[str], more: Iterable[str]) -> None:
    """Add to `problems` those of `more` that are about other settings.

    A setting that is wrong itself, or was misspelt, may make others look wrong.
    """
    named = named_in(problems)
    problems += [line for line in more if not named & named_in([line])]


def named_in(problems: Iterable[str]) -> set[str]:
    """The flags that problems are about; a line about a file names its settings without dashes."""
    flags: set[str] = set()
    for line in problems:
        flags |= set(FLAG.findall(line))
        if of_file := OF_FILE.match(line):
            flags.add(flag(of_file[1]))
    return flags
