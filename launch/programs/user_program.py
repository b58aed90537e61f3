"""A user's program, of which only the command line is known."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from configs import cli
from configs.settings.launch import LaunchConfig
from configs.settings.program import PLACEHOLDERS, ProgramConfig, RunConfig
from launch.programs.project_snapshot import take
from launch.spec import LaunchSpec, Program
from launch.starters.base import starter_of
from muster.errors import refuse
from muster.ownership import owner_is_foreign
from muster.run_files import FUNCTION, SNAPSHOT, project_of
from muster.worker.function_call import ABOUT

PLACE = re.compile(f"{{({'|'.join(PLACEHOLDERS)})}}")  # in --wrap
COMPILE = "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec', dont_inherit=True)"


class UserProgram:
    """A script, `-m module`, a function, or any other command, with unchanged arguments."""

    def __init__(
        self,
        words: Sequence[str],
        config: ProgramConfig,
        launch: LaunchConfig,
        run: RunConfig,
        cwd: Path,
    ) -> None:
        self._words, self._config, self._launch, self._cwd = words, config, launch, cwd
        self.title = name_of(words) if words[0] == "--function" else shlex.join(words)
        self.name = name_of(words)  # in a run's name
        self._python = config.python or own_python(cwd, launch.workers, os.environ)
        self._wrap = tuple(shlex.split(config.wrap or ""))
        logs, checkpoints = run.logs_dir or project_of(cwd) / "logs", run.checkpoint_dir
        self.run = replace(
            run,
            logs_dir=logs.absolute(),
            checkpoint_dir=checkpoints and checkpoints.absolute(),
        )

    def check(self, python: str, world_size: int | None = None) -> None:
        """Refuse a program that cannot start, as far as is known here; `python`: the nodes' own.

        Any number of workers is accepted.

        Raises:
            UsageError: the program does not exist, or its Python lacks the package that starts it.
        """
        python = self._python or python
        refuse(
            [
                *_problems(self._words, self._cwd, python),
                *python_problems(python, self._launch.workers),
                *starter_of(self._launch.workers).problems(
                    replace(of_words(self._words, self._cwd), wrap=self._wrap)
                ),
            ]
        )

    def spec(
        self, *, make: bool, snapshot: bool, is_sent: bool = False, shared: Path | None = None
    ) -> LaunchSpec:
        """The run, which has its id; its folder is filled with `make`.

        `snapshot`: what runs is a copy of the project, unless the user says otherwise. `is_sent`:
        nodes have disks of their own. `shared`: the folder with the snapshot, of several runs.
        """
        run, run_dir = self.run, self.run.logs_root / str(self.run.run_id)
        root = cwd = self._cwd
        if make and snapshot and self._config.snapshot:
            project = project_of(cwd)
            root = SNAPSHOT.path(shared or run_dir)
            if shared is None or not root.is_dir():
                taken = take(project, shared or run_dir, self._config.patterns)
                if not run.quiet:
                    print(taken, file=sys.stderr)
            root = sent_to(run.run_id) if is_sent else root
            cwd = root / cwd.resolve().relative_to(project.resolve())
        words = self._words
        if words[0] == "--function":
            words = _with_function(Path(words[1]), run_dir, make=make, is_sent=is_sent)
        places = {"snapshot": str(root), "run_dir": str(run_dir), "cwd": str(cwd)}
        program = replace(
            of_words(words, cwd),
            python=self._config.python if is_sent else self._python,
            wrap=tuple(PLACE.sub(lambda found: places[found[1]], word) for word in self._wrap),
        )
        prologue = self._config.prologue
        return replace(
            LaunchSpec.of(program, run, self._launch),
            secrets=self._config.variables(os.environ),
            prologue=prologue.read_text(encoding="utf-8") if prologue else "",
        )

    def settings(self, *launch: Any) -> str:
        """Those of the run and its launch; the program is in launch.json."""
        return cli.to_yaml(self.run, *launch)


def sent_to(run_id: str | None, what: str = "snapshot") -> Path:
    """The place of a snapshot on nodes with their own disk, below their checkout."""
    return Path("logs", f".{what}-{run_id}")


def _with_function(folder: Path, run_dir: Path, *, make: bool, is_sent: bool) -> Sequence[str]:
    """The program that calls the function in `folder`; with `make`, the run gets a copy of it."""
    place = FUNCTION.path(run_dir)
    if make and folder != place:
        shutil.copytree(folder, place)  # file modes are copied, so private files stay private
    return ["--function", str(sent_to(run_dir.name, "function") if is_sent else place)]


def own_python(cwd: Path, workers: str, env: Mapping[str, str]) -> str | None:
    """The Python of the active environment, or of one in the project; None: Muster's own.

    A Python without the package that starts the workers, as conda's base often is, is skipped with
    a note; and so is one in the project that is neither this user's nor the project's owner's.
    """
    active = [env.get("VIRTUAL_ENV"), env.get("CONDA_PREFIX")]
    in_project = project_of(cwd) / ".venv"
    for folder in filter(None, [*active, str(in_project)]):
        found = str(Path(folder, "bin", "python"))
        if not Path(found).exists():
            continue
        # in a folder such as /tmp anybody may have put one that nobody named
        foreign = folder not in active and owner_is_foreign(in_project)
        does = f"{found} belongs to another user; where you trust it, name it with --python"
        lacks = [does] if foreign else list(python_problems(found, workers))
        if not lacks:
            return found
        print(f"note: not the program's Python: {lacks[0]}", file=sys.stderr)
    return None


def of_words(words: Sequence[str], cwd: Path) -> Program:
    """The program of a command line."""
    is_python = words[0] in ("-m", "--function") or words[0].endswith(".py")
    return Program(tuple(words) if is_python else ("--exec", *words), cwd=str(cwd))


def name_of(words: Sequence[str]) -> str:
    """The program's name in a run's name: `train` for `train.py --lr 1e-3`."""
    if words[0] == "--function" and (about := Path(*words[1:2], ABOUT)).is_file():
        words = [json.loads(about.read_text(encoding="utf-8"))["name"]]
    word = words[1] if words[0] == "-m" and len(words) > 1 else words[0]
    plain = Path(word).name.removesuffix(".py")
    return "".join(one if one.isalnum() or one in "._-" else "-" for one in plain) or "program"


def _problems(words: Sequence[str], cwd: Path, python: str) -> Iterator[str]:
    """Reasons why the program cannot start, as far as they are visible here."""
    is_here = Path(python).exists()  # else the nodes have another Python, checked there
    if words[0] == "-m" and len(words) < 2:
        yield "-m needs the name of a module: -- -m package.module"
    elif words[0] == "-m" and is_here and not _has(python, words[1].partition(".")[0], cwd):
        yield f"-m {words[1]}: no such module in {cwd} or in the packages of {python}"
    elif words[0] == "--function" and is_here and not _has(python, "cloudpickle"):
        yield (
            f"{python} has no cloudpickle, by which a function is sent; install it there, or name "
            "another Python with python="
        )
    elif words[0].endswith(".py"):
        yield from _script_problems(cwd / words[0], words[0], python if is_here else None)
    elif words[0] not in ("-m", "--function"):
        found = cwd / words[0] if "/" in words[0] else words[0]
        if shutil.which(found) is None:
            yield f"{words[0]}: no such program, or it may not be run; looked in {cwd} and on PATH"


def python_problems(python: str, workers: str) -> Iterator[str]:
    """A line if `python` lacks what starts the workers; the nodes' own is asked there."""
    needed = starter_of(workers).needs
    if needed is not None and Path(python).exists() and not _has(python, needed):
        yield (
            f"{python} has no {needed}, which --workers {workers} needs; name another with "
            "--python, or use --workers manual"
        )


@cache
def _has(python: str, package: str, cwd: Path | None = None) -> bool:
    """Whether that Python finds a package, also in the folder `cwd`; nothing is imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    asked = [python, "-Ic" if cwd is None else "-c", code]
    return not subprocess.run(asked, cwd=cwd, capture_output=True, check=False).returncode


@cache  # a sweep has one script
def _script_problems(path: Path, name: str, python: str | None) -> list[str]:
    """Check the syntax with `python`, since it differs between versions."""
    try:
        text = path.read_bytes()
    except OSError as error:
        return [f"{name}: {error.strerror}; looked in {path.parent}"]
    if python is None:
        return []
    asked = [python, "-Ic", COMPILE, name]
    done = subprocess.run(asked, input=text, capture_output=True, check=False)
    error_text = done.stderr.decode(errors="replace").strip()
    found = re.search(r"^\w+Error: (.*)\Z", error_text, re.MULTILINE)
    line = re.search(rf'^ *File "{re.escape(name)}", line (\d+)$', error_text, re.MULTILINE)
    where = f"{name}:{line[1]}" if line else name
    return [f"{where}: {found[1]}: it does not compile"] if found else []
