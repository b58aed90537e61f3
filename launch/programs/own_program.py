"""The programs of train/, with settings that hold wherever their workers start."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs import cli, plugins
from configs.run_folder import claim, claim_new, new_run_id
from configs.settings.bench import BenchConfig
from configs.settings.launch import LaunchConfig
from configs.settings.train import TrainConfig
from launch.programs.run_spec import run_spec
from launch.spec import Facts, LaunchSpec, Program
from muster.errors import refuse

# With --workers preload, until a run of the task has recorded its own imports: transformers takes
# longer than torch, and these do without it.
WITHOUT_TRANSFORMERS = frozenset(("synthetic", "mnist", "cs744"))


class OwnProgram:
    """`train.worker`, or the bench of collectives."""

    def __init__(self, launch: LaunchConfig, train: TrainConfig, bench: BenchConfig) -> None:
        self._launch, self._train, self._bench = launch, train, bench

    @property
    def title(self) -> str:
        """What the run does, in few words."""
        return self._launch.measures or f"{self._train.task}, {self._train.sync}"

    def spec(self, facts: Facts, *, make: bool, snapshot: bool = False) -> LaunchSpec:
        """The run on these nodes; with `make`, its folder is this run's from here on.

        The checkout itself runs: there is no snapshot of it.

        Raises:
            UsageError: the settings do not suit so many workers, or the folder is not free.
        """
        if facts.world_size is not None:
            refuse(self._train.world_problems(facts.world_size))
        train = self._train = _named(
            _from_here(self._train), facts.size, self._launch.measures, make=make
        )
        # The folder is claimed here: to the workers it is theirs already.
        on_nodes = replace(_as_nodes_see(train, facts), redirect=True, overwrite=False)
        program = program_of(self._launch, on_nodes, self._bench)
        spec = run_spec(program, train, self._launch, resumed=train.resume is not None)
        if spec.workers != "preload":
            return spec
        # as train/worker.py has it, before torch is imported
        quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
        needs = ["torch"] if train.task in WITHOUT_TRANSFORMERS else ["torch", "transformers"]
        modules = spec.preload or ",".join(needs)
        return replace(spec, env={**spec.env, **quiet}, preload=modules)

    def settings(self, *launch: Any) -> str:
        """The file that repeats the run."""
        return cli.to_yaml(self._train, *launch, self._bench)


def program_of(launch: LaunchConfig, train: TrainConfig, bench: BenchConfig) -> Program:
    """A program of train/, with the flags that make its settings again."""
    flags = cli.program_argv(launch.program, train, bench)
    made = Program.module(
        f"train.{launch.program}", *flags, takes_resume=launch.program == "worker"
    )
    return replace(made, source=train.task)


def _from_here(train: TrainConfig) -> TrainConfig:
    """The settings with paths that hold in any folder."""
    return replace(
        train,
        data_dir=train.data_dir and train.data_dir.absolute(),
        cache_dir=train.cache_dir and train.cache_dir.absolute(),
        logs_dir=train.logs_dir and train.logs_dir.absolute(),
        checkpoint_dir=train.checkpoint_dir and train.checkpoint_dir.absolute(),
        resume=_absolute_if_path(train.resume),
        model=_absolute_if_path(train.model),
        tokenizer=_absolute_if_path(train.tokenizer),
        metrics=_each(train.metrics, _absolute_if_path),
    )


def _absolute_if_path(name: str | None) -> str | None:
    """What is a file or a folder if there is one of that name, else a name of another kind."""
    return str(Path(name).absolute()) if name and Path(name).exists() else name


def _named(train: TrainConfig, size: str, what: str, *, make: bool) -> TrainConfig:
    """The settings with the run's id; with `make`, its folder is this run's from here on."""
    if train.run_id is None:
        return replace(train, run_id=(claim_new if make else new_run_id)(train, size, what))
    if make:
        claim(train.logs_root / train.run_id, train)
    return train


def _as_nodes_see(train: TrainConfig, facts: Facts) -> TrainConfig:
    """The settings as nodes need them that do not see this machine's files.

    What lies in the checkout lies in theirs, too; workers start there, so that it is named from
    there. Other paths are taken to be the nodes' own.
    """
    if facts.shared:
        return train
    return replace(
        train,
        data_dir=train.data_dir and Path(_in_checkout(str(train.data_dir))),
        cache_dir=None,
        logs_dir=None,
        checkpoint_dir=train.checkpoint_dir and Path(_in_checkout(str(train.checkpoint_dir))),
        resume=train.resume and _in_checkout(train.resume),
        model=train.model and _in_checkout(train.model),
        tokenizer=train.tokenizer and _in_checkout(train.tokenizer),
        metrics=_each(train.metrics, _in_checkout),
    )


def _each(metrics: str | None, change: Callable[[str], str | None]) -> str | None:
    """`--metrics` with each of its names changed; what follows a colon stays."""
    if metrics is None:
        return None
    parts = [one.strip().partition(":") for one in metrics.split(",")]
    return ",".join(f"{change(name)}{colon}{rest}" for name, colon, rest in parts)


def _in_checkout(path: str) -> str:
    root = str(plugins.REPOSITORY) + "/"
    return path.removeprefix(root)
