"""Which Python runs a user's program, and whether it has what its workers need.

A Python is asked as workers will start it: with the variables of Python that they will have, and
without the folder that it is called in.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from launch.starters.base import starter_of
from muster.ownership import owner_is_foreign
from muster.run_files import project_of

# Of what a Python is asked in; the folder that it is called in is taken off its path.
FINDS = """
import sys
sys.path[: not getattr(sys.flags, "safe_path", False)] = []
import importlib.util
sys.exit(importlib.util.find_spec(sys.argv[1]) is None)
"""
# With that folder, in which `-m` finds modules.
FINDS_HERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
OF_PATH = ("python", "python3")


@dataclass(frozen=True)
class PythonChoice:
    """The Python of a program; None is Muster's own."""

    python: str | None
    why: str = ""  # it is not the one that is active: where it is from


@dataclass(frozen=True)
class Asked:
    """How Pythons are asked: in the workers' folder, with what they will have."""

    cwd: Path
    env: Mapping[str, str]
    is_over_ssh: bool = False  # then this shell's variables do not reach the workers

    def with_first(self, python: str | None) -> "Asked":
        """With the folder of this Python first on PATH, as its workers will have it."""
        if python is None or "/" not in python:
            return self
        path = self.env.get("PATH", os.defpath)
        folder = (self.cwd / python).parent
        return replace(self, env={**self.env, "PATH": f"{folder}{os.pathsep}{path}"})

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The variables that rule Python."""
        return tuple(sorted(item for item in self.env.items() if item[0].startswith("PYTHON")))


def workers_environment(
    cwd: Path, given: Mapping[str, str], env: Mapping[str, str], *, is_over_ssh: bool
) -> Asked:
    """How workers will start, in `cwd`: `given` is what the user sets for them, `env` is ours."""
    inherited = {
        name: value
        for name, value in env.items()
        if not (is_over_ssh and name.startswith("PYTHON"))
    }
    return Asked(cwd, {**inherited, **given}, is_over_ssh)


def choose(workers: str, asked: Asked) -> PythonChoice:
    """The Python of the active environment, of one in the project, or on PATH; else Muster's own.

    One that cannot start the workers is skipped: an environment's, as conda's base often is, with a
    note; that on PATH, which nobody has chosen, silently if it has no torch.
    """
    in_project = project_of(asked.cwd) / ".venv"
    project = str(in_project)
    places = {asked.env.get("VIRTUAL_ENV"): "", asked.env.get("CONDA_PREFIX"): ""}
    places.setdefault(project, "of the project")
    for folder, why in places.items():
        found = str(Path(folder, "bin", "python")) if folder else ""
        if not found or not Path(found).exists():
            continue
        # in a folder such as /tmp anybody may have put one that nobody named
        foreign = folder == project and bool(why) and owner_is_foreign(in_project)
        does = f"{found} belongs to another user; where you trust it, name it with --python"
        lacks = [does] if foreign else list(problems(found, workers, asked))
        if not lacks:
            return PythonChoice(found, why)
        say_once(f"note: not the program's Python: {lacks[0]}")
    for name in OF_PATH:
        on_path = shutil.which(name, path=asked.env.get("PATH"))
        if on_path is None or not has(on_path, "torch", asked):
            continue
        if Path(on_path).parent.resolve() == Path(sys.executable).parent.resolve():
            return PythonChoice(None)  # Muster's own is the active one
        if not list(problems(on_path, workers, asked)):
            return PythonChoice(on_path, "found on PATH")
    return PythonChoice(None, "Muster's own")


def absent(
    python: str | None, asked: Asked, otherwise: str = "the active environment's"
) -> Iterator[str]:
    """A line if the Python that was named is not on this machine; `otherwise`: that of others."""
    path = str(asked.cwd / python) if python is not None and "/" in python else python
    if path is not None and shutil.which(path, path=asked.env.get("PATH")) is None:
        yield (
            f"--python {python}: no such program, or it may not be run; leave it out for "
            f"{otherwise}"
        )


def note_other(typed: str, chosen: str) -> None:
    """Say, once, that the `python` that was typed would be another than the one chosen."""
    on_path = shutil.which(typed)
    if on_path is not None and not _is_same(on_path, chosen):
        say_once(
            f"note: {typed} on PATH is {on_path}, but the program runs with {chosen}; to run it "
            f"with the former: --python {shlex.quote(on_path)}"
        )


def _is_same(python: str, other: str) -> bool:
    """Whether both are in one environment, whose `python` and `python3` are the same."""
    return Path(python).parent.resolve() == Path(other).parent.resolve()


def announce(choice: PythonChoice, own: str, *, is_sent: bool) -> None:
    """Say which Python runs the program, once, if it is not the active one.

    `own`: Muster's own on the nodes; it is used where a program is sent to disks of their own.
    """
    if is_sent:
        say_once(f"python: {own}, Muster's own on each node; --python names another")
    elif choice.why:
        say_once(f"python: {choice.python or own}, {choice.why}; --python names another")


@cache
def say_once(line: str) -> None:
    """Print a line, to which the runs of a sweep add nothing."""
    print(line, file=sys.stderr)


def problems(python: str, workers: str, asked: Asked) -> Iterator[str]:
    """A line if `python` lacks what starts the workers; the nodes' own is asked there."""
    needed = starter_of(workers).needs
    if needed is None or not Path(python).exists() or has(python, needed, asked):
        return
    here = workers_environment(asked.cwd, asked.env, os.environ, is_over_ssh=False)
    if asked.is_over_ssh and "PYTHONPATH" in os.environ and has(python, needed, here):
        yield (
            f"{python} finds {needed} through PYTHONPATH, which does not reach nodes over ssh; "
            "pass it on: --env PYTHONPATH"
        )
        return
    yield (
        f"{python} has no {needed}, which --workers {workers} needs; name another with "
        "--python, or use --workers manual"
    )


def has(python: str, package: str, asked: Asked) -> bool:
    """Whether that Python finds a package when it starts a worker; nothing is imported."""
    return _succeeds(python, (FINDS, package), asked.cwd, asked.settings)


def has_here(python: str, package: str, asked: Asked) -> bool:
    """Whether `python -m` finds a package, which may be in the folder that it is called in."""
    return _succeeds(python, (FINDS_HERE, package), asked.cwd, asked.settings)


@cache
def _succeeds(
    python: str, words: Sequence[str], cwd: Path, settings: tuple[tuple[str, str], ...]
) -> bool:
    rest = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [python, "-c", *words], cwd=cwd, env={**rest, **dict(settings)},
            stdin=subprocess.DEVNULL, capture_output=True, check=False,
        )  # fmt: skip
    except OSError:  # it is no program
        return False
    return not done.returncode
