"""Read the command line of a run: its settings, and the program after `--`."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from configs import cli
from configs.cli import Instances, Parsed
from configs.raw import RawSetting
from configs.settings.fields import add_new, by_name
from configs.settings.launch import (
    SCHEDULERS,
    LaunchConfig,
    ProgramConfig,
    RunConfig,
    scheduler_here,
)
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from configs.settings.train import MEASUREMENT_SETTINGS, BenchConfig, TrainConfig, TrainElsewhere
from launch.programs.own_program import OwnProgram, is_this_python, missing_inputs
from launch.programs.python_choice import absent, workers_environment
from launch.programs.python_command import without_python
from launch.programs.user_program import UserProgram, missing_script
from launch.spec import WorkersPython
from launch.starters.base import starter_of
from muster.checkout import nodes_python
from muster.command import restore_env_values
from muster.errors import UsageError, refuse

LAUNCH_CLASSES = (LaunchConfig, SshConfig, SlurmConfig)
CLASSES = (*LAUNCH_CLASSES, RunConfig, ProgramConfig, TrainConfig, BenchConfig)
ABOUT = (
    "Start a program in every worker of a run, on this machine or on a cluster. Without a program, "
    "Muster's own trainer is started; --help-all shows its settings."
)
EXAMPLE = "muster run --launcher local --nodes 4 -- train.py --lr 1e-3"


def setting_names(*classes: type) -> frozenset[str]:
    """The names of the settings of these classes."""
    return frozenset(by_name(*classes))


TRAINER_SETTINGS = setting_names(TrainConfig, BenchConfig) - setting_names(RunConfig)
SUBMISSION_SETTINGS = setting_names(SshConfig, SlurmConfig)
SUBMISSION_SETTINGS |= {"launcher", "detach", "dry_run", "hosts", "json"}
DEFAULTS = {name: item.default for name, item in by_name(*CLASSES).items()}


def split_program(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split `argv` into the flags before the first `--` and the unchanged program after it.

    Raises:
        UsageError: no program follows `--`, for example because a shell variable is empty.
    """
    words = list(argv)
    if "--" not in words:
        return words, []
    index = words.index("--")
    if not any(words[index + 1 : index + 2]):
        raise UsageError("no program follows --\ntip: give one, as in -- train.py, or leave out --")
    return words[:index], words[index + 1 :]


@dataclass(frozen=True)
class CommandLine(Settings):
    """The settings of a run, and the words of its program: none for Muster's own programs."""

    words: Sequence[str]  # the program
    parsed: Parsed
    run: RunConfig  # for Muster's own programs, the same as `train`
    own: ProgramConfig | None = None  # for the user's program
    train: TrainConfig | None = None  # for our trainer, like `bench`
    bench: BenchConfig | None = None
    typed_python: str | None = None  # the `python` before a script, removed from `words`

    @classmethod
    def parse(cls, argv: Sequence[str], *, prog: str = "muster run") -> "CommandLine":
        """Read `argv`.

        Raises:
            UsageError: flags are wrong or have no effect on the program; with all problems.
            SystemExit: 0, after --help.
        """
        line, problems = cls.read(argv, prog=prog)
        refuse(problems)
        return line

    @classmethod
    def read(
        cls, argv: Sequence[str], *, prog: str = "muster run"
    ) -> tuple["CommandLine", list[str]]:
        """Read `argv`, and return a line for each problem; defaults replace wrong values.

        Raises:
            UsageError: a settings file cannot be read, or no program follows `--`.
            SystemExit: 0, after --help.
        """
        flags, words = split_program(restore_env_values(argv, os.environ))
        parsed, (settings, wrong) = _read(tuple(flags), prog, bool(words))
        launch, ssh, slurm, run, more = settings
        of_python: list[str] = []
        if words:
            program: Sequence[str] = words
            python = more.python
            if Path(words[0]).name.startswith("python"):
                program, python, of_python = without_python(words, python)
            typed_python = words[0] if len(program) < len(words) else None
            own = replace(more, python=python)
            line = cls(launch, ssh, slurm, program, parsed, run, own=own, typed_python=typed_python)
        else:
            line = cls(launch, ssh, slurm, words, parsed, run, train=run, bench=more)
        problems = [*line.misplaced()]
        add_new(problems, wrong)
        problems += of_python
        return line, problems

    def missing(self, cwd: Path, launcher: str) -> list[str]:
        """A line for each file that the program needs but that is known not to exist.

        A dry run does not check the trainer's files, since its commands may be run later.
        """
        lines = [*self._absent_python(cwd)] if launcher == "local" else []
        if self.launch.send is not None:
            from launch.nodes import sending  # imported here, since few runs send data

            lines += sending.problems(self.launch.send, cwd)
        if self.train is None or self.words:
            return [*lines, *self._wrong_variables(), *missing_script(self.words, cwd)]
        reads = self.launch.program == LaunchConfig.program and not self.launch.dry_run
        return [*lines, *(missing_inputs(self.train, cwd, launcher) if reads else ())]

    def _wrong_variables(self) -> list[str]:
        """A line for each variable of --env and --env-file that cannot be passed on."""
        try:
            (self.own or ProgramConfig()).variables(os.environ)
        except UsageError as error:
            return error.problems
        return []

    def _absent_python(self, cwd: Path) -> Iterator[str]:
        """A line if the Python that is named for the workers does not exist on this machine."""
        own = self.own or ProgramConfig()
        if (own.prologue, own.wrap, own.container) != (None, None, None):
            return  # the prologue, the wrapper or the image may provide it
        python = own.python if self.own else self.python
        otherwise = "the active environment's" if self.own else "Muster's own"
        is_on_path = python is not None and "/" not in python
        if is_on_path and (own.env or own.env_file is not None):
            return  # the workers may have another PATH
        environment = workers_environment(cwd, {}, os.environ, is_over_ssh=False)
        yield from absent(python, environment, otherwise)

    def program(self, cwd: Path) -> OwnProgram | UserProgram:
        """The program of the workers; `cwd`: the folder in which the command was called."""
        if self.own is not None:
            return UserProgram(
                self.words, self.own, self.launch, self.run, cwd, typed_python=self.typed_python
            )
        assert self.train is not None and self.bench is not None
        return OwnProgram(self.launch, self.train, self.bench, self.python)

    @property
    def python(self) -> str | None:
        """The Python that the user named for our trainer's workers, if any."""
        named: str | None = self.parsed.values["python"]
        if named is None or self.parsed.origin["python"].source == "cluster":
            return None  # a cluster's Python is only for the user's own programs
        return str(Path(named).absolute()) if "/" in named else named

    @property
    def workers_python(self) -> WorkersPython:
        """The Python and packages that the workers need, as far as known before the run."""
        if not self.words:
            return WorkersPython(python=self.python)
        own = self.own or ProgramConfig()
        relative = own.python is not None and "/" in own.python and not own.python.startswith("/")
        # a prologue or a container may provide what a node lacks
        if (own.prologue, own.wrap, own.container) != (None, None, None) or relative:
            return WorkersPython(())
        needs_torch = starter_of(self.launch.workers).needs is not None
        packages = ("torch",) if needs_torch else ()
        return WorkersPython(packages, own.python, is_chosen_here=own.python is None)

    @cached_property
    def identity(self) -> list[str]:
        """What identifies a run: the program's words, or the settings of our trainer."""
        if self.train is None:
            return list(self.words)
        # the sweep chooses the folder
        train = replace(self.train, run_id=None, logs_dir=None, checkpoint_dir=None, quiet=False)
        return cli.to_argv(replace(train, overwrite=False))

    @property
    def trainer_note(self) -> str:
        """A line if the trainer runs although no setting asks for it: a program may be missing."""
        is_requested = any(
            each.name in TRAINER_SETTINGS | {"program"} for each in self.parsed.explicit
        )
        if self.train is None or is_requested or self.train.quiet:
            return ""
        return (
            f"note: no program given after --, so this trains Muster's own task {self.train.task}"
        )

    def refused(self, settings: Collection[str], why: str) -> Iterator[str]:
        """A line for each of these settings that was given.

        A setting in a file that only repeats its default does not count, since a run's config.yaml
        has all settings. Neither does a switch that is turned off.
        """
        for each in self.parsed.explicit:
            counts = self.parsed.values.get(each.name) is not False and not self._repeats(each)
            if each.name in settings and counts:
                yield f"{each.spelt} {why}"

    def _repeats(self, setting: RawSetting) -> bool:
        """Whether this is a line of a file that repeats the setting's default."""
        name = setting.name
        return setting.source == "file" and self.parsed.values.get(name) == DEFAULTS.get(name)

    def misplaced(self) -> Iterator[str]:
        """A line for each given setting that belongs to another program."""
        program = self.words[0] if self.words else self.launch.program
        if self.words:
            for each in self.parsed.explicit:
                if each.name == "program" and not self._repeats(each):
                    yield (
                        f"{each.spelt} {each.text} and {program} are two programs"
                        "\ntip: give only one of them"
                    )
                elif each.name in TRAINER_SETTINGS:  # even in a file, since the defaults differ
                    yield (
                        f"{each.spelt} is a setting of Muster's own trainer"
                        f"\ntip: put the options of {program} after its name: -- {program} ..."
                    )
            return
        why = "has no effect without a program of your own\ntip: put it after --: -- train.py"
        yield from self.refused(setting_names(ProgramConfig) - {"python"}, why)
        if program == LaunchConfig.program:
            yield from self.refused(
                setting_names(BenchConfig),
                "has no effect without --program bench_collectives\ntip: leave it out",
            )
        else:  # one settings file may serve a run and its benchmark
            for each in self.parsed.flags:
                if each.name in setting_names(TrainConfig) - MEASUREMENT_SETTINGS:
                    yield (
                        f"{each.spelt} has no effect with --program {program}\ntip: leave it out"
                    )


def training(parsed: Parsed) -> type[TrainConfig]:
    """The class of the trainer's settings, which depends on whether workers have this Python.

    Another Python is asked later which tasks and sync modes its packages add: see
    `OwnProgram.check_plugins`.
    """
    launcher = parsed.values["launcher"]
    if launcher == "auto" and parsed.values["hosts"] is None:
        launcher = scheduler_here() or "local"
    is_here = launcher == "local" or (launcher in SCHEDULERS and is_this_python(nodes_python()))
    return TrainConfig if is_here and parsed.values["python"] is None else TrainElsewhere


@cache  # many runs of a sweep have the same flags
def _read(flags: tuple[str, ...], prog: str, is_users: bool) -> tuple[Parsed, Instances]:
    first = frozenset(DEFAULTS) - TRAINER_SETTINGS
    used = (
        *LAUNCH_CLASSES,
        *((RunConfig, ProgramConfig) if is_users else (TrainConfig, BenchConfig)),
    )
    parsed = cli.parsed(
        CLASSES, flags, prog=prog, description=ABOUT, first=first, used=used, example=EXAMPLE
    )
    classes = [training(parsed) if cls is TrainConfig else cls for cls in used]
    return parsed, parsed.instances(classes)
