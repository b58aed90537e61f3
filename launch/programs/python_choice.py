"""Choose the Python that runs a user's program, and check whether it has what the workers need.

This module starts a Python as the workers will start it: with the PYTHON variables that they will
have, but without the current folder on its path.
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
from muster.errors import UsageError, is_denied
from muster.ownership import owner_is_foreign
from muster.run_files import project_of
from muster.terminal import TIP

# Asks a Python whether it finds a package, with the current folder removed from its path.
FIND_PACKAGE_SCRIPT = """
import sys
sys.path[: not getattr(sys.flags, "safe_path", False)] = []
import importlib.util
sys.exit(importlib.util.find_spec(sys.argv[1]) is None)
"""
# The same with the current folder, in which `-m` finds modules.
FINDS_HERE = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
# Prints the folders of a Python's imports. `pip install -e` adds a finder, or a folder to the path.
IMPORT_FOLDERS = """
import os, sys
paths = set(filter(os.path.isabs, sys.path))
for finder in sys.meta_path:
    module = sys.modules.get(getattr(finder, "__module__", ""))
    paths.update(map(os.path.dirname, getattr(module, "MAPPING", {}).values()))
print(*sorted(path for path in paths if not path.startswith(sys.prefix + "/")), sep="\\n")
"""
PYTHONS_ON_PATH = ("python", "python3")
ACTIVE_VARIABLES = ("VIRTUAL_ENV", "CONDA_PREFIX")  # each has the folder of an active environment


@dataclass(frozen=True)
class PythonChoice:
    """The Python of a program; None is Muster's own."""

    python: str | None
    why: str = ""  # where it is from, unless it is the active environment's


@dataclass(frozen=True)
class WorkersEnvironment:
    """The folder and the variables that workers will have, also used to ask a Python."""

    cwd: Path
    env: Mapping[str, str]
    is_over_ssh: bool = False  # then this shell's variables do not reach the workers

    def with_python_first(self, python: str | None) -> "WorkersEnvironment":
        """The environment with this Python's folder first on PATH, as the workers will have it."""
        if python is None or "/" not in python:
            return self
        path = self.env.get("PATH", os.defpath)
        folder = (self.cwd / python).parent
        return replace(self, env={**self.env, "PATH": f"{folder}{os.pathsep}{path}"})

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """The variables that configure Python."""
        return tuple(sorted(item for item in self.env.items() if item[0].startswith("PYTHON")))


def workers_environment(
    cwd: Path, given: Mapping[str, str], env: Mapping[str, str], *, is_over_ssh: bool
) -> WorkersEnvironment:
    """What workers will have in `cwd`: this process's `env`, and the variables that are `given`."""
    inherited = {
        name: value
        for name, value in env.items()
        if not (is_over_ssh and name.startswith("PYTHON"))
    }
    return WorkersEnvironment(cwd, {**inherited, **given}, is_over_ssh)


def choose(workers: str, environment: WorkersEnvironment) -> PythonChoice:
    """The Python of the active environment, of the project's, or on PATH; else Muster's own.

    A Python that cannot start the workers is skipped, as often happens to conda's base. A note is
    printed if it belongs to an environment, but not if it is a Python on PATH without torch, which
    nobody has chosen.

    Raises:
        UsageError: this user may not enter an environment's folder.
    """
    in_project = project_of(environment.cwd) / ".venv"
    project = str(in_project)
    places = {environment.env.get(name): "" for name in ACTIVE_VARIABLES}
    places.setdefault(project, "from the project")
    for folder, why in places.items():
        python = str(Path(folder, "bin", "python")) if folder else ""
        if python and is_denied(python):  # as after `su`
            names = [name for name in ACTIVE_VARIABLES if environment.env.get(name) == folder]
            unset = f"unset {names[0]}, or " if names else ""
            raise UsageError(
                f"{python}: permission denied{TIP}{unset}choose a Python with --python"
            )
        if not python or not Path(python).exists():
            continue
        # anybody may have put an environment in a folder such as /tmp
        is_foreign = folder == project and bool(why) and owner_is_foreign(in_project)
        of_owner = f"{python} belongs to another user; if you trust it, choose it with --python"
        reasons = [of_owner] if is_foreign else list(problems(python, workers, environment))
        if not reasons:
            return PythonChoice(python, why or _unlike_path(python, folder, environment))
        say_once(f"note: this Python is not used: {reasons[0]}")
    for name in PYTHONS_ON_PATH:
        on_path = shutil.which(name, path=environment.env.get("PATH"))
        if on_path is None or not has(on_path, "torch", environment):
            continue
        if Path(on_path).parent.resolve() == Path(sys.executable).parent.resolve():
            return PythonChoice(None)  # Muster's own is the active one
        if not list(problems(on_path, workers, environment)):
            return PythonChoice(on_path, "found on PATH")
    return PythonChoice(None, "Muster's own")


def _unlike_path(python: str, folder: str | None, environment: WorkersEnvironment) -> str:
    """The source of an active environment's Python if PATH has another `python`; else "".

    PATH has another one after `conda activate` inside a venv, or if a later shell has inherited the
    activation.
    """
    path = environment.env.get("PATH")
    on_path = next(filter(None, (shutil.which(name, path=path) for name in PYTHONS_ON_PATH)), None)
    if on_path is None or _is_same(on_path, python):
        return ""
    name = next(name for name in ACTIVE_VARIABLES if environment.env.get(name) == folder)
    return f"from {name}, although {Path(on_path).name} on PATH is {on_path}"


def absent(
    python: str | None, environment: WorkersEnvironment, otherwise: str = "the active environment's"
) -> Iterator[str]:
    """A line if the named Python is not on this machine; `otherwise`: what runs without it."""
    path = str(environment.cwd / python) if python is not None and "/" in python else python
    if path is not None and shutil.which(path, path=environment.env.get("PATH")) is None:
        why = "permission denied" if is_denied(path) else "no such program, or not executable"
        yield f"--python {python}: {why}\ntip: leave it out to use {otherwise}"


def note_other(typed_python: str, chosen: str) -> None:
    """Print, once, that the typed `python` is not the chosen Python."""
    on_path = shutil.which(typed_python)
    if on_path is not None and not _is_same(on_path, chosen):
        say_once(
            f"note: {typed_python} on PATH is {on_path}, but the program runs with {chosen}; to "
            f"use the former: --python {shlex.quote(on_path)}"
        )


def _is_same(python: str, other: str) -> bool:
    """Whether both are in one environment, whose `python` and `python3` are the same Python."""
    return Path(python).parent.resolve() == Path(other).parent.resolve()


def announce(choice: PythonChoice, own: str, *, is_sent: bool) -> None:
    """Print, once, which Python runs the program, if it is not the active one.

    `own`: Muster's own Python on the nodes, which runs programs that are sent to them (`is_sent`).
    """
    if is_sent:
        say_once(f"python: {own}, Muster's own on each node; change it with --python")
    elif choice.why:
        say_once(f"python: {choice.python or own}, {choice.why}; change it with --python")


@cache
def say_once(line: str) -> None:
    """Print a line, but not again for each run of a sweep."""
    print(line, file=sys.stderr)


def problems(python: str, workers: str, environment: WorkersEnvironment) -> Iterator[str]:
    """A line if `python` lacks what starts the workers; a Python on the nodes is checked there."""
    needed = starter_of(workers).needs
    if needed is None or not Path(python).exists() or has(python, needed, environment):
        return
    home = environment.env.get("PYTHONHOME")
    if home and not _succeeds(python, ("",), environment.cwd, environment.settings):
        yield f"{python} does not start with PYTHONHOME={home}\ntip: unset it"
        return
    here = workers_environment(environment.cwd, environment.env, os.environ, is_over_ssh=False)
    if environment.is_over_ssh and "PYTHONPATH" in os.environ and has(python, needed, here):
        yield (
            f"{python} finds {needed} through PYTHONPATH, which is not passed to nodes over ssh"
            "\ntip: pass it on: --env PYTHONPATH"
        )
        return
    yield (
        f"{python} has no {needed}, which --workers {workers} needs"
        "\ntip: choose another Python with --python, or use --workers manual"
    )


def has(python: str, package: str, environment: WorkersEnvironment) -> bool:
    """Whether `python` finds a package when it starts a worker; the package is not imported."""
    return _succeeds(python, (FIND_PACKAGE_SCRIPT, package), environment.cwd, environment.settings)


def has_here(python: str, package: str, environment: WorkersEnvironment) -> bool:
    """Whether `python -m` finds a package, which may be in the current folder."""
    return _succeeds(python, (FINDS_HERE, package), environment.cwd, environment.settings)


def import_folders(python: str, environment: WorkersEnvironment) -> list[str]:
    """The absolute paths of the folders outside its environment from which a Python imports."""
    done = _run_code(python, (IMPORT_FOLDERS,), Path("/"), environment.settings)
    return [] if done is None or done.returncode else done.stdout.splitlines()


def _succeeds(
    python: str, words: Sequence[str], cwd: Path, settings: tuple[tuple[str, str], ...]
) -> bool:
    done = _run_code(python, words, cwd, settings)
    return done is not None and not done.returncode


@cache
def _run_code(
    python: str, words: Sequence[str], cwd: Path, settings: tuple[tuple[str, str], ...]
) -> "subprocess.CompletedProcess[str] | None":
    """The result of `python -c WORDS`; None if `python` cannot be started."""
    rest = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    try:
        return subprocess.run(
            [python, "-c", *words], cwd=cwd, env={**rest, **dict(settings)},
            stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True, errors="replace",
        )  # fmt: skip
    except OSError:
        return None
