"""The programs of train/, with settings that are valid wherever their workers start."""

import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from configs import cli, plugins
from configs.settings.fields import flag
from configs.settings.launch import LaunchConfig, ProgramConfig
from configs.settings.train import BenchConfig, TrainConfig, TrainElsewhere
from launch.nodes import node_facts
from launch.programs import trainer_python
from launch.programs.base import Sources
from launch.spec import LaunchSpec, Program
from muster import entry_points
from muster.checkout import CHECKOUT, IS_INSTALLED
from muster.errors import UsageError, refuse
from muster.terminal import TIP

# Slow imports of the trainer, for --workers preload. transformers takes longer than torch, and some
# tasks do not need it.
IMPORTED = "torch,torch._dynamo,torch.nn.parallel,torch.profiler,torch.utils.data,psutil,yaml"
LANGUAGE_IMPORTS = "transformers.models.auto.modeling_auto,transformers.models.bert.modeling_bert"
WITHOUT_TRANSFORMERS = frozenset(("synthetic", "mnist", "cs744"))
GENERATED = ("cs744", "generated")  # a task, and a value of its --data-dir that is not a folder
# Settings that name files to read before the first step, and advice if the file does not exist.
INPUTS = {
    "data_dir": "give the folder with the task's files",
    "resume": "give a checkpoint, a run folder, or auto",
    **dict.fromkeys(("model", "tokenizer"), "give a folder, a file, or a name on the Hub"),
}


class OwnProgram:
    """`train.worker`, or the collectives benchmark."""

    def __init__(
        self,
        launch: LaunchConfig,
        train: TrainConfig,
        bench: BenchConfig,
        python: str | None = None,
    ) -> None:
        """`python`: the workers' Python; None: Muster's own."""
        self._launch = launch
        self._bench = bench
        self._python = python
        run = _with_paths(train, lambda path: str(Path(path).absolute()), _absolute_if_path)
        # workers start in the installation, from which the project cannot be found
        self.run = replace(run, logs_dir=run.logs_root.absolute()) if IS_INSTALLED else run
        is_training = launch.program == "worker"
        self.title = f"{train.task}, {train.sync}" if is_training else launch.program
        self.name = train.name if is_training else launch.program  # in a run's name

    @property
    def sources(self) -> Sources:
        """See the contract; nothing is copied, since the checkout itself runs."""
        return Sources()

    def check(self, python: str, world_size: int | None, *, runs_here: bool = False) -> None:
        """See the contract.

        Raises:
            UsageError: the settings do not fit this number of workers, or the workers' Python lacks
                packages that the trainer needs.
        """
        if world_size is not None:
            refuse(self.run.world_problems(world_size))
        refuse(self.lacks(python))
        nodes = self._launch.nodes
        local = self.run.local_batch_size
        if local is not None and nodes is not None and nodes.least < nodes.most:
            raise UsageError(
                f"--local-batch-size {local} on --nodes {nodes}: with fewer nodes, the run would "
                "continue with a smaller batch"
                "\ntip: use --batch-size"
            )

    def check_plugins(
        self, python: str, added: Collection[str] | None = None, node: str = ""
    ) -> None:
        """See the contract; the plug-ins are tasks, sync modes and compressors.

        A Python that was not asked yet is asked here, if it is a file that this machine sees.

        Raises:
            UsageError: a line for each missing plug-in, with the names that this Python has.
        """
        chosen = self.run.plugins() if isinstance(self.run, TrainElsewhere) else {}
        python = self._python or python
        if chosen and added is None:
            added = _plugins_added_to(python)
        if not chosen or added is None:
            return
        problems = []
        where = f"{python} on {node}" if node else python
        for name, (package, value) in chosen.items():
            begin = f"{plugins.GROUPS[package]}:"
            others = [entry.removeprefix(begin) for entry in added if entry.startswith(begin)]
            if value not in others:
                all_names = ", ".join(sorted({*plugins.own_names(package), *others}))
                known = entry_points.unknown(plugins.GROUPS[package], value, all_names)
                problems.append(f"{name}: unknown {value!r} in {where}{known}")
        refuse(problems)

    def announce(self, *, is_sent: bool, is_copied: bool = False) -> None:
        """See the contract; there is nothing to print."""

    def spec(self, run_id: str, *, is_sent: bool, snapshot: Path | None) -> LaunchSpec:
        """See the contract; there is never a snapshot."""
        run = replace(self.run, run_id=run_id)
        # The launcher claims the folder here; the workers use it without a claim.
        on_nodes = replace(_as_sent(run) if is_sent else run, redirect=True, overwrite=False)
        program = replace(program_of(self._launch, on_nodes, self._bench), python=self._python)
        spec = LaunchSpec.from_settings(program, run, self._launch)
        if spec.workers != "preload":
            return spec
        # the same as train/worker.py sets before it imports torch
        quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
        needs = [IMPORTED] if run.task in WITHOUT_TRANSFORMERS else [IMPORTED, LANGUAGE_IMPORTS]
        modules = spec.preload or ",".join(needs)
        return replace(spec, env={**spec.env, **quiet}, preload=modules)

    def settings(self, *launch: object) -> str:
        """See the contract."""
        own = [ProgramConfig(python=self._python)] if self._python else []
        return cli.to_yaml(self.run, *launch, self._bench, *own)

    def lacks(self, python: str) -> Iterator[str]:
        """A line if the workers' Python cannot run our programs, as far as it is known here.

        `python`: the nodes' own Python.
        """
        over_ssh = self._launch.hosts is not None  # then the nodes are asked about their own Python
        if over_ssh or (self._python is None and not Path(python).exists()):
            return
        needed = {"accelerate"} if "accelerate" in (self._launch.workers, self.run.sync) else set()
        is_own = self.run.task in plugins.own_names("train.tasks")
        is_language = is_own and self.run.task not in WITHOUT_TRANSFORMERS
        if self._launch.program == "worker" and is_language:
            needed |= {"transformers"}
        trackers = self.run.log_with or () if self._launch.program == "worker" else ()
        yield from trainer_python.problems(self._python or python, needed, trackers)


def is_this_python(python: str) -> bool:
    """Whether a path names the Python that runs this command, as `python` or `python3`."""
    own = Path(sys.executable)
    path = Path(python)
    return path.parent == own.parent and path.resolve() == own.resolve()


def _plugins_added_to(python: str) -> Collection[str] | None:
    """The plug-ins that the packages of a Python add; None if they cannot be found here."""
    if is_this_python(python):
        return entry_points.every_name()
    return _ask_for_plugins(python)


@cache  # the runs of a sweep have the same Python
def _ask_for_plugins(python: str) -> Collection[str] | None:
    added: Collection[str] | None = node_facts.plugins(python)
    return added


def is_generated(train: TrainConfig) -> bool:
    """Whether the value of --data-dir is a word that asks for generated data."""
    return train.data_dir is not None and (train.task, train.data_dir.name) == GENERATED


def missing_inputs(train: TrainConfig, cwd: Path, launcher: str) -> Iterator[str]:
    """A line for each file or folder that a run will read but that is known not to exist.

    Other machines may have other disks. On a Slurm cluster, only the checkout and `cwd` are known
    to be the same on all machines.
    """
    if launcher == "ssh":
        return
    folders = (cwd.absolute(), CHECKOUT)  # workers start in the checkout
    for name, advice in INPUTS.items():
        value = str(getattr(train, name) or "")
        is_name = name in ("model", "tokenizer") and not value.startswith(("/", "./", "../", "~"))
        is_made = name == "data_dir" and is_generated(train)
        if not value or is_name or is_made or (name == "resume" and value == "auto"):
            continue
        own = os.path.expanduser(value)  # noqa: PTH111 (Path raises without a home)
        places = [Path(folder, own) for folder in folders]
        is_known = launcher == "local" or any(
            places[0].is_relative_to(folder) for folder in folders
        )
        if is_known and not any(place.exists() for place in places):
            yield f"{flag(name)} {value} does not exist{TIP}{advice}"


def program_of(launch: LaunchConfig, train: TrainConfig, bench: BenchConfig) -> Program:
    """A program of train/, with the flags that reproduce its settings."""
    is_training = launch.program == "worker"
    if is_training:
        flags = cli.to_argv(train)
    else:
        of_train = cli.for_bench(cli.to_argv(replace(train, task=TrainConfig.task)))
        flags = [*of_train, *cli.changed(bench, BenchConfig())]
    return Program.module(f"train.{launch.program}", *flags, takes_resume=is_training)


def _absolute_if_path(name: str) -> str:
    """The absolute path, if a file or folder has that name; otherwise the name itself."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def _as_sent(train: TrainConfig) -> TrainConfig:
    """The settings for nodes that do not see this machine's files.

    A path in this checkout also exists in theirs, where workers start, so it becomes relative.
    Other paths are assumed to be paths on the nodes.
    """
    own = replace(train, cache_dir=None, logs_dir=None)
    return _with_paths(own, _in_checkout, _in_checkout)


def _with_paths(
    train: TrainConfig, folder: Callable[[str], str], name: Callable[[str], str]
) -> TrainConfig:
    """The settings with each path changed: `folder` changes paths, `name` possible paths."""

    def moved(path: Path | None) -> Path | None:
        return None if path is None else Path(folder(str(path)))

    def renamed(text: str | None) -> str | None:
        return name(text) if text else text

    metrics = train.metrics
    if metrics is not None:  # the part after a colon is kept
        parts = [part.strip().partition(":") for part in metrics.split(",")]
        metrics = ",".join(f"{name(path)}{colon}{rest}" for path, colon, rest in parts)
    return replace(
        train,
        data_dir=moved(train.data_dir),
        cache_dir=moved(train.cache_dir),
        logs_dir=moved(train.logs_dir),
        checkpoint_dir=moved(train.checkpoint_dir),
        resume=renamed(train.resume),
        model=renamed(train.model),
        tokenizer=renamed(train.tokenizer),
        metrics=metrics,
    )


def _in_checkout(path: str) -> str:
    return path.removeprefix(f"{CHECKOUT}/")
