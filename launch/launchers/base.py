"""The contract of a launcher (`--launcher`): how to start a run, and how to ask about it later."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from configs import plugins
from configs.settings.fields import add_new, named_in
from configs.settings.launch import LaunchConfig, scheduler_here
from configs.settings.remote import Settings
from launch.checks.findings import Row
from launch.programs.command_line import CommandLine
from launch.programs.other_launchers import refuse_several
from launch.runs.run_state import LeaderWatcher, Submission
from launch.spec import (
    RANK_FLAGS,
    Facts,
    LaunchSpec,
    NodeCommand,
    NodeFacts,
    NodeSpec,
    WorkersPython,
)
from launch.starters.base import commands_of, starter_of
from muster.errors import UsageError, refuse
from muster.rank_variables import SIZES

if TYPE_CHECKING:  # each launcher imports what it returns
    from launch.agent.led_run import LedRun

UNCOUNTED = "# the commands depend on how many GPUs each node has"


class NodePool(Protocol):
    """The nodes for the attempts of a run: a launcher's machines, or the nodes of a job."""

    waits_for_nodes: bool  # whether a restart waits for missing nodes

    @property
    def name(self) -> str:
        """The value of --launcher."""
        ...

    def launch(self, spec: LaunchSpec, facts: Facts) -> "LedRun":
        """Start the first attempt of the run on these nodes.

        Raises:
            MusterError: an agent does not start.
        """
        ...

    def probe_again(self, facts: Facts, lives: Callable[[NodeFacts], bool]) -> Facts:
        """The facts for a restart; `lives`: whether a node's agent still answers.

        Raises:
            MusterError: too few nodes answer.
        """
        ...


class Launcher(ABC):
    """The base class of the launchers; each file in launch/launchers/ names its class `build`."""

    takes_snapshot = False  # whether a user's program runs from a copy of its project
    unused = frozenset[str]()  # settings without effect here
    sees_python = True  # whether the workers' Python is a file that this machine sees
    waits_for_nodes = True  # whether a restart waits for missing nodes, which may be rebooting
    checks_nodes = True  # while it probes them
    has_arrays = False  # whether several runs can be the parts of one job

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._config = settings.launch
        self._ssh = settings.ssh
        self._slurm = settings.slurm

    @property
    def name(self) -> str:
        """The value of --launcher."""
        return type(self).__module__.rpartition(".")[2]

    @classmethod
    def watcher(cls) -> LeaderWatcher:
        """The watcher that reports on this launcher's runs, and ends them, from any process."""
        return LeaderWatcher()

    @classmethod
    def is_login_node(cls) -> bool:
        """Whether this machine is in a cluster of this scheduler, so that `auto` chooses it."""
        return False

    @property
    def workers_python(self) -> WorkersPython:
        """What nodes are asked about the workers' Python."""
        settings = self.settings
        return settings.workers_python if isinstance(settings, CommandLine) else WorkersPython()

    def problems(self) -> Iterable[str]:
        """Problems with the settings, as far as they are known before any machine is asked."""
        return ()

    @abstractmethod
    def probe(self) -> Facts:
        """Ask the machines for their facts.

        Raises:
            MusterError: the machines cannot run the program; with all problems.
        """

    @abstractmethod
    def assume(self) -> Facts:
        """For a dry run: the facts that are known without asking any machine."""

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        """The processes of every node; none if the nodes must count GPUs first. A pure function."""
        if facts.world_size is None and not starter_of(spec.workers).counts_gpus:
            return []
        return commands_of(spec, facts)

    def show(self, spec: LaunchSpec, facts: Facts) -> str:
        """The output of a dry run: lines that one could paste into a shell on each node."""
        commands = "\n".join(folded(self.plan(spec, facts))) or UNCOUNTED
        image = spec.program.image
        return f"# inside {image}, by each node's own engine:\n{commands}" if image else commands

    @property
    def submits(self) -> bool:
        """Whether a run becomes a job of a scheduler, with a leader of its own."""
        return False

    def submit(self, spec: LaunchSpec, facts: Facts) -> Submission:
        """Hand the run to the scheduler, if this launcher `submits`.

        Raises:
            MusterError: the scheduler refuses the job.
        """
        raise NotImplementedError

    def most_in_array(self) -> int:
        """How many runs may be the parts of one job array, if this launcher `has_arrays`.

        Raises:
            MusterError: the scheduler does not answer.
        """
        raise NotImplementedError

    def job_folder(self, parent: Path) -> Path:
        """The folder below `parent` for the scheduler's files about a job."""
        return parent

    def submit_array(
        self,
        name: str,
        specs: Sequence[LaunchSpec],
        facts: Facts,
        folder: Path,
        at_once: int = 1,
    ) -> tuple[list[str], str]:
        """Submit one job array with a part for each run; return their numbers and the cluster.

        A single run is a plain job. `folder` (see `job_folder`) receives the output of each part.
        At most `at_once` parts run at the same time.

        Raises:
            MusterError: the scheduler refuses the job; with the scheduler's own message.
        """
        raise NotImplementedError

    def pool_of(self, spec: LaunchSpec, facts: Facts) -> NodePool:
        """The nodes on which this process starts the run, unless this launcher `submits`."""
        return self

    def launch(self, spec: LaunchSpec, facts: Facts) -> "LedRun":
        """See `NodePool`."""
        raise NotImplementedError

    def probe_again(self, facts: Facts, lives: Callable[[NodeFacts], bool]) -> Facts:
        """See `NodePool`."""
        return self.probe()

    def check_nodes(self, facts: Facts, disks: Mapping[str, Path]) -> list[Row]:
        """Check the nodes in the facts of `assume`; the rows are for the doctor's table.

        `disks`: folders of the run that need space on their disks, by their content.

        Raises:
            UsageError: this launcher has no way to ask its nodes.
        """
        raise UsageError(f"--launcher {self.name}: muster doctor cannot reach its nodes")

    def set_up(self) -> None:
        """Create the environment on the nodes.

        Raises:
            UsageError: this launcher does not support it.
            MusterError: a line for every node on which it failed.
        """
        raise UsageError(
            "--setup is only for --launcher ssh\ntip: here and on Slurm nodes, run: make install"
        )


def with_data(places: Mapping[NodeSpec, str], facts: Facts) -> Facts:
    """The facts, with the place of the --send data on each node."""
    nodes = (replace(node, data=places.get(node.spec, "")) for node in facts.nodes)
    return replace(facts, nodes=tuple(nodes)) if places else facts


def folded(plan: Sequence[NodeCommand]) -> Iterator[str]:
    """A line for each command, or for the first of those that differ only in the node's rank."""
    for _, group in groupby(plan, key=lambda command: command.for_node_rank(0)):
        first, *others = group
        yield first.line()
        if others:
            ranks = dict.fromkeys(str(other.node_rank) for other in (others[0], others[-1]))
            where = "the other node" if len(others) == 1 else f"the other {len(others)} nodes"
            flag = next(word for word in first.argv if word in RANK_FLAGS)
            yield f"# the same on {where}, with {flag} {' to '.join(ranks)}"


def launcher_of(line: CommandLine) -> Launcher:
    """The launcher of a run.

    Raises:
        UsageError: settings were given that have no effect with this launcher, or this command was
            started several times.
    """
    if not SIZES.isdisjoint(os.environ):
        refuse_several(os.environ)
    if login := line.parsed.origin.get("login"):
        on = line.launch.on
        raise UsageError(
            f"--on {on} is reached through {login.text}, which only the `muster` command can use"
            f"\ntip: run: muster run --on {on}"
        )
    name = launcher_name(line.launch)
    launcher: Launcher = plugins.load("launch.launchers", name)(line)
    if launcher.name != name:  # later commands find it by the name in the run's records
        raise UsageError(
            f"--launcher {name}: its class is in {type(launcher).__module__}, so the entry point "
            f"of {plugins.GROUPS['launch.launchers']} must be named {launcher.name}"
        )
    why = f"has no effect with --launcher {name}\ntip: leave it out, or choose another launcher"
    refuse(line.refused(launcher.unused, why))
    return launcher


def checked_launcher(
    line: CommandLine, problems: list[str], *, with_program: bool = True
) -> Launcher | None:
    """The launcher of a run; None if `problems` name a flag that chooses it.

    The launcher's own problems are added to `problems`, as far as they are known before any machine
    is asked. `with_program`: missing files of the program are added as well.
    """
    launcher = None
    if not {"--launcher", "--hosts"} & named_in(problems):
        try:
            launcher = launcher_of(line)
            add_new(problems, launcher.problems())
        except UsageError as error:
            add_new(problems, error.problems)
    if with_program:
        is_named = line.launch.launcher != "auto" and line.launch.hosts is None
        # over ssh, the least is known about the nodes' files
        name = line.launch.launcher if is_named else "ssh"
        add_new(problems, line.missing(Path.cwd(), launcher.name if launcher else name))
    return launcher


def launcher_name(config: LaunchConfig) -> str:
    """The value of --launcher; `auto` never trains on a cluster's login node by mistake.

    Only the chosen launcher is imported, and the launcher of a scheduler that is installed here.
    """
    if config.launcher != "auto":
        return config.launcher
    if config.hosts is not None:
        return "ssh"
    name = scheduler_here()
    is_login_node = name is not None and plugins.load("launch.launchers", name).is_login_node()
    return name if name is not None and is_login_node else "local"
