"""A user's program, of which only the command line is known."""

import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from configs import cli
from configs.settings.launch import PLACEHOLDERS, LaunchConfig, ProgramConfig, RunConfig
from launch.programs import other_launchers, python_choice
from launch.programs.base import Sources
from launch.programs.project_snapshot import path_on_nodes
from launch.programs.python_choice import (
    PYTHONS_ON_PATH,
    PythonChoice,
    WorkersEnvironment,
    workers_environment,
)
from launch.spec import LaunchSpec, Program
from launch.starters.base import starter_of
from muster.errors import closest, refuse
from muster.run_files import FUNCTION, plain_name, project_of
from muster.worker import placeholders
from muster.worker.function_call import ABOUT
from muster.writing import open_plain

PLACEHOLDER = re.compile(f"{{({'|'.join(PLACEHOLDERS)})}}")  # in --wrap
MAIN = "__main__.py"  # in a folder or archive that Python runs
IN_IMAGE = "python3"  # the Python of an image, if no other is named
COMPILE = "import sys; compile(sys.stdin.buffer.read(), sys.argv[1], 'exec', dont_inherit=True)"


class UserProgram:
    """A script, `-m module`, a function, or any other command, with unchanged arguments.

    A folder or archive with a `__main__.py` counts as a script, as it does for Python itself.
    """

    def __init__(
        self,
        words: Sequence[str],
        config: ProgramConfig,
        launch: LaunchConfig,
        run: RunConfig,
        cwd: Path,
        *,
        typed_python: str | None = None,  # the `python` before the words
    ) -> None:
        self._words = words
        self._config = config
        self._launch = launch
        self._cwd = cwd
        self._typed_python = typed_python
        self.title = name_of(words) if words[0] == "--function" else shlex.join(words)
        self.name = name_of(words)  # in a run's name
        self._secrets = config.variables(os.environ)
        self._environment = workers_environment(
            cwd, self._secrets, os.environ, is_over_ssh=launch.hosts is not None
        )
        self._image = str(cwd / config.container) if config.container is not None else ""
        self._choice = PythonChoice(config.python or (IN_IMAGE if self._image else None))
        if self._choice.python is None:
            self._choice = python_choice.choose(launch.workers, self._environment)
        self._environment = self._environment.with_python_first(self._choice.python)
        self._nodes_own = ""
        self._wrap = tuple(shlex.split(config.wrap or ""))
        logs = run.logs_dir or project_of(cwd) / "logs"
        checkpoints = run.checkpoint_dir
        self.run = replace(
            run,
            logs_dir=logs.absolute(),
            checkpoint_dir=checkpoints and checkpoints.absolute(),
        )

    @property
    def python(self) -> str | None:
        """The Python of workers that see this machine's files; None: Muster's own."""
        return self._choice.python

    @property
    def sources(self) -> Sources:
        """See the contract."""
        is_function = self._words[0] == "--function"
        return Sources(
            project=project_of(self._cwd) if self._config.snapshot else None,
            patterns=self._config.include,
            function=Path(self._words[1]) if is_function else None,
        )

    def check(self, python: str, world_size: int | None = None, *, runs_here: bool = False) -> None:
        """See the contract; any number of workers is accepted.

        Raises:
            UsageError: the program or its Python does not exist, the Python lacks the package that
                starts workers, or the program starts workers itself.
        """
        refuse(other_launchers.problems(self._words, self._wrap))
        for line in self._notes_on_placeholders():
            python_choice.say_once(f"note: {line}")
        self._nodes_own = python
        python = "" if self._image else self._choice.python or python
        workers = self._launch.workers
        lacks = python_choice.problems(python, workers, self._environment) if python else ()
        # a prologue's additions exist only on the nodes, a wrapper's only in its container
        if runs_here and self._config.prologue is None and not self._wrap and python:
            refuse(python_choice.absent(self._config.python, self._environment))
        is_missing = runs_here and self._image and not Path(self._image).exists()
        refuse(
            [
                *([f"--container {self._image}: no such file or folder"] if is_missing else ()),
                *_problems(self._words, self._environment, python),
                # what a prologue adds, such as modules, exists only on the nodes
                *(lacks if self._config.prologue is None else ()),
                *starter_of(workers).problems(
                    replace(parse_program(self._words, self._cwd), wrap=self._wrap)
                ),
            ]
        )

    def _notes_on_placeholders(self) -> Iterator[str]:
        if not _may_have_placeholders(self._words):
            return
        yield from placeholders.notes(self._words)
        starter = starter_of(self._launch.workers)
        used = placeholders.used(self._words)
        if starter.serves_port and "master_addr" in used and "master_port" not in used:
            yield (
                "{master_addr} without {master_port}: a program that chooses its own port needs "
                f"--workers manual, since {self._launch.workers} opens a port for all workers"
            )

    def check_plugins(
        self, python: str, added: Collection[str] | None = None, node: str = ""
    ) -> None:
        """See the contract; this program has no settings of Muster's trainer."""

    def spec(self, run_id: str, *, is_sent: bool, snapshot: Path | None) -> LaunchSpec:
        """See the contract."""
        run = replace(self.run, run_id=run_id)
        run_dir = run.logs_root / run_id
        root = self._cwd
        cwd = self._cwd
        if snapshot is not None:
            root = snapshot
            cwd = snapshot / self._cwd.resolve().relative_to(project_of(self._cwd).resolve())
        words = self._words
        if words[0] == "--function":
            function = path_on_nodes(run_id, "function") if is_sent else FUNCTION.path(run_dir)
            words = ["--function", str(function)]
        places = {"snapshot": str(root), "run_dir": str(run_dir), "cwd": str(cwd)}
        program = replace(
            parse_program(words, self._cwd),
            cwd=str(cwd),
            python=self._config.python if is_sent and not self._image else self._choice.python,
            wrap=tuple(
                PLACEHOLDER.sub(lambda place: places[place[1]], word) for word in self._wrap
            ),
            image=self._image,
            mounts=self._config.container_mounts,
            project="" if is_sent or not self._image else str(project_of(self._cwd)),
        )
        prologue = self._config.prologue
        return replace(
            LaunchSpec.from_settings(program, run, self._launch),
            secrets=self._secrets,
            prologue=prologue.read_text(encoding="utf-8-sig") if prologue else "",
        )

    def announce(self, *, is_sent: bool, is_copied: bool = False) -> None:
        """Print which Python is used, if it is not the active one and the program needs it."""
        if self.run.quiet:
            return
        if self._image:
            if self._config.python is None:
                of_image = f"{IN_IMAGE} of {self._image}"
                python_choice.say_once(f"python: {of_image}; change it with --python")
            return
        # a command finds its Python on PATH, where Muster's own is not
        is_own = is_sent or self._choice.python is None
        if self._config.python is None and not (is_own and not _is_python(self._words, self._cwd)):
            python_choice.announce(self._choice, self._nodes_own, is_sent=is_sent)
        if self._config.python is None and self._typed_python in PYTHONS_ON_PATH and not is_sent:
            python_choice.note_other(self._typed_python, self._choice.python or self._nodes_own)
        if is_copied and not is_sent and self._words[0] != "--function":
            self._note_live_code()

    def _note_live_code(self) -> None:
        """Print, once, which code the program takes from the project instead of its snapshot."""
        cwd, project = self._cwd.resolve(), project_of(self._cwd).resolve()
        script = Path(self._words[0])
        if script.is_absolute() and script.is_relative_to(project):
            python_choice.say_once(
                f"note: this runs {script} itself, not its copy in the snapshot; to run the copy, "
                f"give the relative path: {shlex.quote(os.path.relpath(script, cwd))}"
            )
        # relative paths point into the snapshot, and precede the paths of installed packages
        given = filter(None, self._environment.env.get("PYTHONPATH", "").split(os.pathsep))
        first = [script.parent if script.suffix == ".py" else Path(), *map(Path, given)]
        python = self._choice.python or self._nodes_own
        imported = python_choice.import_folders(python, self._environment)
        live = {Path(path).resolve() for path in imported}
        live -= {(cwd / path).resolve() for path in first if not path.is_absolute()}
        found = sorted(os.path.relpath(path, cwd) for path in live if path.is_relative_to(project))
        if found:
            python_choice.say_once(
                f"note: {python} also imports from {', '.join(found)} in the project instead of "
                "the snapshot (PYTHONPATH, or pip install -e), so later edits there affect this "
                "run; to import from the snapshot: --env "
                f"PYTHONPATH={shlex.quote(os.pathsep.join(found))}"
            )

    def settings(self, *launch: object) -> str:
        """See the contract; the program is in launch.json."""
        return cli.to_yaml(self.run, *launch)


def _is_python(words: Sequence[str], cwd: Path) -> bool:
    """Whether the program is started by Python itself, not as a command."""
    is_named = words[0] in ("-m", "--function") or words[0].endswith(".py")
    return is_named or _is_application(words[0], cwd)


def _is_application(word: str, cwd: Path) -> bool:
    """Whether `python word` runs the `__main__.py` of a folder or of a zipapp archive.

    A word on PATH and an executable archive, which has its own Python, remain ordinary commands.
    """
    if "/" not in word and shutil.which(word) is not None:
        return False
    path = cwd / word
    if path.is_dir():
        return (path / MAIN).is_file()
    try:
        if not path.is_file() or ("/" in word and os.access(path, os.X_OK)):
            return False  # such as a pipe, which would block
        with zipfile.ZipFile(path) as archive:
            return MAIN in archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def parse_program(words: Sequence[str], cwd: Path) -> Program:
    """The program with these words."""
    plain = tuple(words) if _is_python(words, cwd) else ("--exec", *words)
    fills = _may_have_placeholders(words) and bool(placeholders.used(words))
    return Program(plain, cwd=str(cwd), has_placeholders=fills)


def _may_have_placeholders(words: Sequence[str]) -> bool:
    return words[0] != "--function" and any("{" in word for word in words)


def name_of(words: Sequence[str]) -> str:
    """The program's name in a run's name: `train` for `train.py --lr 1e-3`."""
    if words[0] == "--function" and (about := Path(*words[1:2], ABOUT)).is_file():
        words = [str(json.loads(about.read_text(encoding="utf-8"))["name"])]
    word = words[1] if words[0] == "-m" and len(words) > 1 else words[0]
    return plain_name(Path(word).name.removesuffix(".py")) or "program"


def _problems(words: Sequence[str], environment: WorkersEnvironment, python: str) -> Iterator[str]:
    """Reasons why the program cannot start, as far as they are visible here.

    `python`: "" for the Python of an image, whose content is only known on the nodes.
    """
    cwd = environment.cwd
    is_here = bool(python) and Path(python).exists()  # if not, the nodes check their own Python
    if words[0] == "-m" and len(words) < 2:
        yield "-m needs a module name\ntip: write it as in -- -m package.module"
    elif words[0] == "-m" and is_here:
        if not python_choice.has_here(python, words[1].partition(".")[0], environment):
            yield f"-m {words[1]}: no such module in {cwd} or in the packages of {python}"
    elif (
        words[0] == "--function"
        and is_here
        and not python_choice.has(python, "cloudpickle", environment)
    ):
        yield (
            f"{python} has no cloudpickle, which sending a function needs"
            "\ntip: install it there, or choose another Python with python="
        )
    elif words[0].endswith(".py") or (_is_application(words[0], cwd) and (cwd / words[0]).is_dir()):
        name = os.path.join(words[0], MAIN) if (cwd / words[0]).is_dir() else words[0]  # noqa: PTH118 (as typed)
        yield from _script_problems(cwd / name, name, python if is_here else None)
    elif _is_application(words[0], cwd):
        return
    elif (cwd / words[0]).is_dir() and shutil.which(
        words[0], path=environment.env.get("PATH")
    ) is None:
        yield f"{words[0]}: Python cannot run this folder, which has no {MAIN}"
    elif python and words[0] not in ("-m", "--function"):
        command = cwd / words[0] if "/" in words[0] else words[0]
        if shutil.which(command, path=environment.env.get("PATH")) is None:
            yield _why_not(words[0], cwd)


def missing_script(words: Sequence[str], cwd: Path) -> list[str]:
    """A line if the program is a script that cannot be read, before any node is asked."""
    is_script = bool(words) and words[0].endswith(".py") and not (cwd / words[0]).is_dir()
    return _script_problems(cwd / words[0], words[0], None) if is_script else []


def _similar(path: Path) -> str:
    """The end of a message: a tip if the folder of `path` has a script with a similar name."""
    try:
        scripts = [file.name for file in path.parent.iterdir() if file.suffix == ".py"]
    except OSError:
        return ""
    similar = closest(path.name, {*scripts} - {path.name})
    return f"\ntip: did you mean {similar}?" if similar else ""


def _why_not(word: str, cwd: Path) -> str:
    """The reason why the program `word` cannot be started."""
    name = shlex.quote(word)
    if not (cwd / word).is_file():
        return f"{word}: no such program in {cwd} or on PATH{_similar(cwd / word)}"
    if os.access(cwd / word, os.X_OK):
        return f"{word}: no such program on PATH\ntip: for the one in this folder, write ./{word}"
    return (
        f"{word} is not executable\ntip: run chmod +x {name}, or give its interpreter: bash {name}"
    )


@cache  # the runs of a sweep have the same script
def _script_problems(path: Path, name: str, python: str | None) -> list[str]:
    """Check a script's syntax with `python`, since syntax differs between versions."""
    try:
        with open_plain(path) as file:
            text = file.read()
    except OSError as error:
        return [f"{name}: {error.strerror} (looked in {path.parent}){_similar(path)}"]
    if python is None:
        return []
    command = [python, "-Ic", COMPILE, name]
    try:
        done = subprocess.run(command, input=text, capture_output=True, check=False)
    except OSError as error:
        return [f"{python}: {error.strerror}"]
    error_text = done.stderr.decode(errors="replace").strip()
    message = re.search(r"^\w+Error: (.*)\Z", error_text, re.MULTILINE)
    line = re.search(rf'^ *File "{re.escape(name)}", line (\d+)$', error_text, re.MULTILINE)
    where = f"{name}:{line[1]}" if line else name
    return [f"{where}: does not compile: {message[1]}"] if message else []
