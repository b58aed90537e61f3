"""What the workers of a node inherit from it: limits are raised, what would surprise is named.

Nothing is started to find that out. The version of a Python is told from the names of its files.
"""

import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import FrozenImporter
from pathlib import Path

from launch.nodes.resources import limits, too_low
from launch.nodes.this_machine import GLOO, TENSORPIPE, card_names, gpu_count, names_no_card
from launch.spec import Assignment
from muster.printable import listed, on_one_line

NOTE_CHARACTERS = 1_000
# Some programs close each file that they might have open, one by one.
MOST_FILES = 1_048_576
VERSION = re.compile(r"python(3\.\d+)")
# Modules that hide nothing: those of Python's own tests, and those inside the interpreter.
UNHIDDEN = {"test", *sys.builtin_module_names}
OF_STANDARD_LIBRARY = {"os.py", "site.py"}
# What uses the cards of a variable, besides the backend whose variable is refused.
USERS = {GLOO: "gloo, for tensors on CPUs,", TENSORPIPE: "torch.distributed.rpc"}


def raise_limits() -> None:
    """Let this process, and all that it starts, have as many files and processes as it may.

    Shells and services begin with a low limit for programs that use select(2).
    """
    for kind, most in ((resource.RLIMIT_NOFILE, MOST_FILES), (resource.RLIMIT_NPROC, None)):
        soft, hard = resource.getrlimit(kind)
        wanted = hard
        if most is not None:
            wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft != resource.RLIM_INFINITY and (soft < wanted or wanted == resource.RLIM_INFINITY):
            with suppress(OSError, ValueError):  # macOS has another limit besides
                resource.setrlimit(kind, (wanted, hard))


def notes(assignment: Assignment, env: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    """A line for each thing to know about what workers get, with what to do.

    `env`: the variables of the workers; `before`: the same without those of the prologue.
    """
    lines = [
        *too_low(limits(), len(assignment.machine_ranks)),
        *_of_cards(env),
        *_of_python(assignment, env, before),
    ]
    return [on_one_line(line)[:NOTE_CHARACTERS] for line in lines]


def _of_cards(env: Mapping[str, str]) -> Iterator[str]:
    """Variables that name no card of this node, and that not all programs use."""
    for variable in (GLOO, TENSORPIPE) if gpu_count() else (TENSORPIPE,):
        value = env.get(variable)
        if not value:
            continue
        own = card_names()
        if names_no_card(variable, value, own):
            yield (
                f"{variable} is set to {value}, and the cards are {listed(own)}; {USERS[variable]} "
                "would fail: set it to one of these, or leave it unset"
            )


def _of_python(
    assignment: Assignment, env: Mapping[str, str], before: Mapping[str, str]
) -> Iterator[str]:
    """What PATH and PYTHONPATH do to the program's Python."""
    program = assignment.spec.program
    named = next((command.argv[0] for command in assignment.commands), None)
    if named is None or program.image or program.wrap:  # a container has a Python of its own
        return
    cwd = Path(assignment.cwd, program.cwd or "")
    place = shutil.which(str(cwd / named) if "/" in named else named, path=env.get("PATH"))
    if place is None:  # which is refused when the workers are started
        return
    python = Path(place)
    on_path = shutil.which("python", path=env.get("PATH"))
    is_new = on_path != shutil.which("python", path=before.get("PATH"))
    if on_path and is_new and program.argv[:1] != ("--exec",) and not _is_same(on_path, place):
        yield (
            f"python on PATH is {on_path} after --prologue, but the program runs with {python}; "
            "to run it with the former: --python python"
        )
    for entry in filter(None, env.get("PYTHONPATH", "").split(os.pathsep)):
        with suppress(OSError):  # no such folder
            yield from _of_folder(cwd / entry, python)


def _of_folder(folder: Path, python: Path) -> Iterator[str]:
    """What a folder of PYTHONPATH does to this Python.

    Raises:
        OSError: it cannot be read.
    """
    with os.scandir(folder) as entries:
        names = {entry.name for entry in entries}
    version = version_of(python)
    other = next(filter(None, map(VERSION.fullmatch, folder.parts)), None)
    if version and other and other[1] != version:
        yield (
            f"PYTHONPATH has {folder}, which is of Python {other[1]}, but the program runs with "
            f"Python {version}, {python}; unset it, or name that Python with --python"
        )
        return
    own = python.parent.parent / "lib" / f"python{version}" / "site-packages" / "torch"
    if "torch" in names and own.is_dir() and not own.samefile(folder / "torch"):
        yield (
            f"PYTHONPATH has {folder / 'torch'}, which hides the torch of {python}; unset it, or "
            "leave that folder out"
        )
    if names >= OF_STANDARD_LIBRARY:
        return
    hidden = [
        name
        for name in sorted(names)
        if _is_found_on_path(name.removesuffix(".py"))
        if name.endswith(".py") or (folder / name / "__init__.py").exists()
    ]
    if hidden:
        yield (
            f"PYTHONPATH has {folder}, where {listed(hidden)} would be taken for Python's own; "
            "rename what is there, or leave that folder out"
        )


def version_of(python: Path) -> str | None:
    """The version of a Python, such as 3.11, by its files; None if they do not tell it."""
    if match := VERSION.fullmatch(python.resolve().name):
        return match[1]
    found = {match[1] for path in (python.parent.parent / "lib").glob("python3.*")
             if (match := VERSION.fullmatch(path.name))}  # fmt: skip
    return found.pop() if len(found) == 1 else None


def _is_found_on_path(module: str) -> bool:
    """Whether Python looks for this module of its own in folders, so that a file may hide it."""
    is_own = module in sys.stdlib_module_names and module not in UNHIDDEN
    return is_own and FrozenImporter.find_spec(module) is None  # not io, os, ...


def _is_same(python: str, other: str) -> bool:
    """Whether both are in one environment."""
    return Path(python).parent.resolve() == Path(other).parent.resolve()
