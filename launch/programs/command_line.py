"""A command line that starts a run: its settings, and the program after `--`."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from configs import cli
from configs.raw import Given, dashed
from configs.settings.bench import OF_MEASUREMENT, BenchConfig
from configs.settings.launch import LaunchConfig, Settings, SlurmConfig, SshConfig
from configs.settings.program import ProgramConfig
from configs.settings.train import TrainConfig
from launch.programs.own_program import OwnProgram
from launch.programs.user_program import UserProgram, split
from muster import env_values
from muster.errors import refuse

CLASSES = (LaunchConfig, ProgramConfig, SshConfig, SlurmConfig, TrainConfig, BenchConfig)
ABOUT = (
    "Start a program in every worker of a run, on this machine or on a cluster: "
    "muster run [--flag VALUE ...] -- train.py --lr 1e-3. Without a program it is the trainer that "
    "comes with Muster, whose settings are shown by --help-all."
)


def names(*classes: type) -> frozenset[str]:
    """The settings of these classes."""
    return frozenset(item.name for cls in classes for item in fields(cls))


# The settings of a run that hold whatever its program is; all others are those of our own trainer.
OF_ANY_RUN = frozenset("run_id logs_dir checkpoint_dir overwrite quiet join_timeout_s".split())
OF_TRAINER = names(TrainConfig, BenchConfig) - OF_ANY_RUN
OF_SBATCH = names(SshConfig, SlurmConfig) | {"launcher", "detach", "dry_run", "hosts"}
DEFAULTS = {item.name: item.default for cls in CLASSES for item in fields(cls)}


@dataclass(frozen=True)
class CommandLine:
    """The settings of one run, and its program: no words for one of Muster's own."""

    launch: LaunchConfig
    own: ProgramConfig
    ssh: SshConfig
    slurm: SlurmConfig
    train: TrainConfig
    bench: BenchConfig
    words: Sequence[str]
    given: Sequence[Given]  # what was typed, or is in the file of --config, whatever its value

    @classmethod
    def of(cls, argv: Sequence[str], *, prog: str = "muster run") -> "CommandLine":
        """Read `argv`.

        Raises:
            UsageError: wrong flags, or some that the program has no use for; every problem at once.
            SystemExit: 0, after --help.
        """
        flags, words = split(env_values.reveal(argv, os.environ))
        settings, given = _read(tuple(flags), prog)
        launch, own, ssh, slurm, train, bench = settings
        made = cls(launch, own, ssh, slurm, train, bench, words, given)
        refuse(made.foreign())
        return made

    @property
    def settings(self) -> Settings:
        """What a launcher is made from."""
        return Settings(self.launch, self.ssh, self.slurm)

    def program(self, cwd: Path) -> OwnProgram | UserProgram:
        """What the workers become; `cwd`: the folder that the command was called in."""
        if self.words:
            return UserProgram(self.words, self.own, self.launch, self.train, cwd)
        return OwnProgram(self.launch, self.train, self.bench)

    @property
    def what_runs(self) -> list[str]:
        """What makes a run another one: the program's words, or the settings of our trainer."""
        if self.words:
            return list(self.words)
        # where it is kept is the sweep's business
        train = replace(self.train, run_id=None, logs_dir=None, checkpoint_dir=None, quiet=False)
        return cli.to_argv(replace(train, overwrite=False))

    def typed(self, some: frozenset[str]) -> list[Given]:
        """Those of these settings that were typed, with whatever value."""
        return [one for one in self.given if one.name in some and not one.where]

    def without_use(self, some: frozenset[str], why: str) -> Iterator[str]:
        """A line for each of these settings that was given.

        One that only repeats its default, in a file, asks for nothing: a run's config.yaml has all
        settings. Nor does a switch that is turned off.
        """
        for one in self.given:
            asks = one.text != "false" and not (one.where and _is_default(one))
            if one.name in some and asks:
                yield f"{_spelt(one)} {why}"

    def foreign(self) -> Iterator[str]:
        """A line for each setting that was given for another program."""
        if not self.words:
            why = "is for a program of your own, which follows after --: -- train.py"
            yield from self.without_use(names(ProgramConfig), why)
            if self.launch.program == LaunchConfig.program:
                yield from self.without_use(
                    names(BenchConfig), "is for --program bench_collectives"
                )
                return
            # a file of settings may serve the run and its bench
            unused = names(TrainConfig) - OF_MEASUREMENT
            why = f"is for training, not for --program {self.launch.program}; leave it out"
            yield from (f"{_spelt(one)} {why}" for one in self.typed(unused))
            return
        program = self.words[0]
        for one in self.given:
            if one.name == "program":
                yield f"{_spelt(one)} {one.text} and {program} are two programs; give one of them"
            elif one.name in OF_TRAINER:  # also in a file: its default is not the program's own
                yield (
                    f"{_spelt(one)} is a setting of the trainer that comes with Muster; what "
                    f"{program} is to be told goes after it: -- {program} ..."
                )


@cache  # of many programs the flags are the same
def _read(flags: tuple[str, ...], prog: str) -> tuple[tuple[Any, ...], tuple[Given, ...]]:
    first = frozenset(DEFAULTS) - OF_TRAINER
    settings = cli.parse(CLASSES, flags, prog=prog, description=ABOUT, first=first)
    return settings, tuple(cli.given(CLASSES, flags))


def _spelt(one: Given) -> str:
    return f"{one.where}{one.name}" if one.where else f"--{dashed(one.name)}"


def _is_default(one: Given) -> bool:
    default = DEFAULTS[one.name]
    return one.text.lower() == ("null" if default is None else str(default).lower())
