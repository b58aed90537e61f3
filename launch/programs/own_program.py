"""The programs of train/, with settings that hold wherever their workers start."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs import cli, plugins
from configs.settings.launch import LaunchConfig
from configs.settings.train import BenchConfig, TrainConfig
from launch.spec import LaunchSpec, Program
from muster.errors import UsageError, refuse

# What the trainer imports that takes long, for --workers preload. transformers takes longer than
# torch, and some tasks do without it.
IMPORTED = "torch,torch._dynamo,torch.nn.parallel,torch.profiler,torch.utils.data,psutil,yaml"
OF_LANGUAGE = "transformers.models.auto.modeling_auto,transformers.models.bert.modeling_bert"
WITHOUT_TRANSFORMERS = frozenset(("synthetic", "mnist", "cs744"))
# Settings that name a folder, and those that name a file, a folder or something else.
FOLDERS = ("data_dir", "cache_dir", "logs_dir", "checkpoint_dir")
NAMES = ("resume", "model", "tokenizer")


class OwnProgram:
    """`train.worker`, or the benchmark of collectives."""

    def __init__(self, launch: LaunchConfig, train: TrainConfig, bench: BenchConfig) -> None:
        self._launch, self._bench = launch, bench
        self.run = _with_paths(train, lambda path: str(Path(path).absolute()), _absolute_if_path)
        trains = launch.program == "worker"
        self.title = f"{train.task}, {train.sync}" if trains else launch.program  # what it does
        self.name = train.name if trains else launch.program  # in a run's name

    def check(self, python: str, world_size: int | None) -> None:
        """Refuse what cannot run so; `python` is known to have what our programs need.

        Raises:
            UsageError: the settings do not suit so many workers.
        """
        if world_size is not None:
            refuse(self.run.world_problems(world_size))
        nodes, local = self._launch.nodes, self.run.local_batch_size
        if local is not None and nodes is not None and self._launch.least_nodes < nodes:
            raise UsageError(
                f"--local-batch-size {local} on --nodes {nodes}: with fewer nodes the run would go "
                "on with another batch; give --batch-size"
            )

    def spec(
        self, *, make: bool, snapshot: bool, is_sent: bool = False, shared: Path | None = None
    ) -> LaunchSpec:
        """The run, which has its id; `is_sent`: nodes have disks of their own.

        The checkout itself runs: nothing is copied into the run folder.
        """
        run = self.run
        # The folder is claimed here: to the workers it is theirs already.
        on_nodes = replace(_as_sent(run) if is_sent else run, redirect=True, overwrite=False)
        spec = LaunchSpec.of(program_of(self._launch, on_nodes, self._bench), run, self._launch)
        if spec.workers != "preload":
            return spec
        # as train/worker.py has it, before torch is imported
        quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
        needs = [IMPORTED] if run.task in WITHOUT_TRANSFORMERS else [IMPORTED, OF_LANGUAGE]
        modules = spec.preload or ",".join(needs)
        return replace(spec, env={**spec.env, **quiet}, preload=modules)

    def settings(self, *launch: Any) -> str:
        """The file that repeats the run."""
        return cli.to_yaml(self.run, *launch, self._bench)


def program_of(launch: LaunchConfig, train: TrainConfig, bench: BenchConfig) -> Program:
    """A program of train/, with the flags that make its settings again."""
    flags = cli.program_argv(launch.program, train, bench)
    takes_resume = launch.program == "worker"
    return Program.module(f"train.{launch.program}", *flags, takes_resume=takes_resume)


def _absolute_if_path(name: str) -> str:
    """What is a file or a folder if there is one of that name, else a name of another kind."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def _as_sent(train: TrainConfig) -> TrainConfig:
    """The settings as nodes need them that do not see this machine's files.

    What lies in the checkout lies in theirs, too; workers start there, so that it is named from
    there. Other paths are taken to be the nodes' own.
    """
    own = replace(train, cache_dir=None, logs_dir=None)
    return _with_paths(own, _in_checkout, _in_checkout)


def _with_paths(
    train: TrainConfig, folder: Callable[[str], str], name: Callable[[str], str]
) -> TrainConfig:
    """The settings with each path changed: those that are always one, and those that may be."""
    changed: dict[str, Any] = {
        one: Path(folder(str(value))) for one in FOLDERS if (value := getattr(train, one))
    }
    changed |= {one: name(value) for one in NAMES if (value := getattr(train, one))}
    if train.metrics is not None:  # what follows a colon stays
        parts = [one.strip().partition(":") for one in train.metrics.split(",")]
        changed["metrics"] = ",".join(f"{name(one)}{colon}{rest}" for one, colon, rest in parts)
    return replace(train, **changed)


def _in_checkout(path: str) -> str:
    return path.removeprefix(f"{plugins.REPOSITORY}/")
