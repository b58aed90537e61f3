"""A program of the user's, of which nothing is known but its command line."""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs import cli
from configs.run_folder import claim, claim_new, new_run_id
from configs.settings.launch import LaunchConfig
from configs.settings.program import ProgramConfig
from configs.settings.train import TrainConfig
from launch.programs.program_checks import problems, python_problems
from launch.programs.project_snapshot import take
from launch.programs.run_spec import run_spec
from launch.spec import Facts, LaunchSpec, Program
from launch.starters.base import starter_of
from muster.errors import UsageError, refuse
from muster.project import project_of
from muster.run_files import FUNCTION, SNAPSHOT
from muster.worker.function_call import ABOUT

SEPARATOR = "--"


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags before the first `--`, and the program after it, of which nothing is touched.

    Raises:
        UsageError: there is no program after it, as when a shell's variable is empty.
    """
    words = list(argv)
    if SEPARATOR not in words:
        return words, []
    at = words.index(SEPARATOR)
    if not any(words[at + 1 : at + 2]):
        raise UsageError(
            "no program follows after --; name one, as in -- train.py, or leave out --"
        )
    return words[:at], words[at + 1 :]


class UserProgram:
    """A script, `-m module`, a function, or any other command, with arguments nobody touches."""

    def __init__(
        self,
        words: Sequence[str],
        config: ProgramConfig,
        launch: LaunchConfig,
        run: TrainConfig,
        cwd: Path,
    ) -> None:
        self._words, self._config, self._launch, self._cwd = words, config, launch, cwd
        self.title = name_of(words) if words[0] == "--function" else shlex.join(words)
        self.name = name_of(words)  # in a run's name
        self._python = config.python or own_python(cwd, launch.workers, os.environ)
        logs, checkpoints = run.logs_dir or project_of(cwd) / "logs", run.checkpoint_dir
        self.run = replace(
            run,
            logs_dir=logs.absolute(),
            checkpoint_dir=checkpoints and checkpoints.absolute(),
        )

    def check(self, python: str) -> None:
        """Refuse what cannot start, as far as that is seen from here; `python`: the nodes' own.

        Raises:
            UsageError: the program is not there, or its Python lacks what starts it.
        """
        python = self._python or python
        refuse(
            [
                *problems(self._words, self._cwd, python),
                *python_problems(python, self._launch.workers),
                *starter_of(self._launch.workers).problems(self._planned()),
            ]
        )

    def _planned(self) -> Program:
        """What is known of the program before there is a run folder."""
        wrap = tuple(shlex.split(self._config.wrap or ""))
        return replace(of_words(self._words, self._cwd), wrap=wrap)

    def spec(self, facts: Facts, *, make: bool, snapshot: bool = False) -> LaunchSpec:
        """The run on these nodes; with `make`, its folder is this run's from here on.

        `snapshot`: what runs is a copy of the project, unless the user says otherwise.

        Raises:
            UsageError: the program cannot start, or the folder is not free.
        """
        self.check(facts.nodes[0].python)
        run = self.run
        if run.run_id is None:
            run_id = (claim_new if make else new_run_id)(run, facts.size, self.name)
            run = replace(run, run_id=run_id)
        elif make:
            claim(run.logs_root / run.run_id, run)
        return self.run_spec(run, make=make, snapshot=snapshot, is_sent=not facts.shared)

    def run_spec(
        self,
        run: TrainConfig,
        *,
        make: bool,
        snapshot: bool,
        is_sent: bool = False,
        earlier: Path | None = None,
    ) -> LaunchSpec:
        """`run`, whose settings have its id: its folder is known.

        `is_sent`: nodes have disks of their own. `earlier`: the folder of the same job's first
        run, whose snapshot a requeued job goes on with.
        """
        run_dir = run.logs_root / str(run.run_id)
        root = cwd = self._cwd
        if make and snapshot and self._config.snapshot:
            project = project_of(cwd)
            root = SNAPSHOT.path(earlier) if earlier is not None else run_dir
            if not root.is_dir() or earlier is None:
                taken = take(project, run_dir, self._config.patterns)
                root = taken.root
                if not run.quiet:
                    print(taken, file=sys.stderr)
            root = sent_to(run.run_id) if is_sent else root
            cwd = root / cwd.resolve().relative_to(project.resolve())
        words = self._words
        if words[0] == "--function":
            words = _with_function(Path(words[1]), run_dir, make=make, is_sent=is_sent)
        places = {"snapshot": str(root), "run_dir": str(run_dir), "cwd": str(cwd)}
        wrap = shlex.split(self._config.wrap or "")
        program = replace(
            of_words(words, cwd),
            source=str(self._cwd),
            python=self._config.python if is_sent else self._python,
            wrap=tuple(_filled(word, places) for word in wrap),
        )
        prologue = self._config.prologue
        return replace(
            run_spec(program, run, self._launch),
            secrets=self._config.variables(os.environ),
            prologue=prologue.read_text(encoding="utf-8") if prologue else "",
        )

    def settings(self, *launch: Any, run: TrainConfig | None = None) -> str:
        """The settings of the launch, and where `run` or, by itself, this one has its checkpoints.

        The program is in launch.json.
        """
        folder = (run or self.run).checkpoint_dir
        return cli.to_yaml(*launch) + (
            f"checkpoint_dir: {json.dumps(str(folder))}\n" if folder else ""
        )


def sent_to(run_id: str | None, what: str = "snapshot") -> Path:
    """Where a snapshot is put on nodes with a disk of their own, below their checkout."""
    return Path("logs", f".{what}-{run_id}")


def _with_function(folder: Path, run_dir: Path, *, make: bool, is_sent: bool) -> Sequence[str]:
    """The program that calls what is in `folder`; with `make`, that is the run's from here on."""
    place = FUNCTION.path(run_dir)
    if make and folder != place:
        shutil.copytree(folder, place)  # what is only its owner's stays so
    return ["--function", str(sent_to(run_dir.name, "function") if is_sent else place)]


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", place)
    return word


def own_python(cwd: Path, workers: str, env: Mapping[str, str]) -> str | None:
    """The Python of the environment that is active, or lies in the project; None: Muster's own.

    One without what starts the workers, as conda's base often is, is passed over with a note.
    """
    active = [env.get("VIRTUAL_ENV"), env.get("CONDA_PREFIX"), str(project_of(cwd) / ".venv")]
    for folder in filter(None, active):
        found = str(Path(folder, "bin", "python"))
        if not Path(found).exists():
            continue
        lacks = list(python_problems(found, workers))
        if not lacks:
            return found
        print(f"note: not the program's Python: {lacks[0]}", file=sys.stderr)
    return None


def of_words(words: Sequence[str], cwd: Path) -> Program:
    """The program of a command line."""
    is_python = words[0] in ("-m", "--function") or words[0].endswith(".py")
    return Program(tuple(words) if is_python else ("--exec", *words), cwd=str(cwd))


def name_of(words: Sequence[str]) -> str:
    """The program in a run's name: `train`, of `train.py --lr 1e-3`."""
    if words[0] == "--function" and (about := Path(*words[1:2], ABOUT)).is_file():
        words = [json.loads(about.read_text(encoding="utf-8"))["name"]]
    word = words[1] if words[0] == "-m" and len(words) > 1 else words[0]
    plain = Path(word).name.removesuffix(".py")
    return "".join(one if one.isalnum() or one in "._-" else "-" for one in plain) or "program"
