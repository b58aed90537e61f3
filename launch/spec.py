"""What to start, as values: a launcher plans commands from them and does what it planned."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from configs.settings.launch import Slots

# Stands in a plan for a port that node 0 finds free when all nodes have met.
DECIDED = "<decided on node0>"


@dataclass(frozen=True)
class NodeSpec:
    """One machine, how one logs in there, and how many workers it gets.

    Two nodes may share a host, as containers that listen on ports of their own do: a node is
    `user@host:port`.
    """

    host: str
    nproc: Slots
    user: str | None = None  # None: as ssh's own configuration says
    port: int | None = None
    address: str | None = None  # on the network between the nodes, where it is known beforehand

    @property
    def name(self) -> str:
        """What one would write into a hosts file."""
        login = f"{self.user}@" if self.user else ""
        if not self.port:
            return f"{login}{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{login}{host}:{self.port}"


@dataclass(frozen=True)
class LaunchSpec:
    """One run: what is started, whatever the machines are like."""

    run_id: str
    run_dir: Path
    worker_argv: tuple[str, ...]  # flags of the module
    env: Mapping[str, str] = field(default_factory=dict)
    workers: str = "torchrun"  # what starts them, a file of launch/starters/
    module: str = "train.worker"
    join_s: float = 120.0  # how long nodes wait for each other
    stop_grace_s: float = 60.0  # for workers that are asked to stop
    ports: tuple[int, int] | None = None  # first and last that nodes may meet at; None: any
    attempt: int = 0  # how often it was started before
    overwrite: bool = False  # an earlier run's files, also on nodes with a disk of their own
    resumed: bool = False  # from a checkpoint, which then stays
    quiet: bool = False


@dataclass(frozen=True)
class NodeFacts:
    """What only a node, or whoever asked it, knows."""

    spec: NodeSpec
    name: str  # in messages and before its workers' lines
    python: str
    repository: str
    nproc: Slots  # "gpu" where nobody has counted them yet
    address: str | None = None  # on the network that gradients take
    shared: bool = True  # whether it sees this machine's checkout


@dataclass(frozen=True)
class Facts:
    """What only the machines know; a launcher's `probe` asks them.

    A dry run asks nobody: what is not known then is `DECIDED`, or None.
    """

    nodes: tuple[NodeFacts, ...]
    master_addr: str
    master_port: int | None = None  # None: what node 0 finds free when all have met
    network: str | None = None

    @property
    def shared(self) -> bool:
        """Whether all nodes see this machine's checkout and run folders."""
        return all(node.shared for node in self.nodes)

    @property
    def world_size(self) -> int | None:
        """None while a node's GPUs have not been counted."""
        counts = [node.nproc for node in self.nodes]
        return sum(int(count) for count in counts) if "gpu" not in counts else None

    @property
    def size(self) -> str:
        """Part of a run's name."""
        return size_of([node.nproc for node in self.nodes])


def size_of(counts: Sequence[Slots]) -> str:
    """`4x1`, or `1+2` where nodes differ."""
    each = "+".join(map(str, counts))
    return f"{len(counts)}x{counts[0]}" if len(set(counts)) == 1 else each


@dataclass(frozen=True)
class NodeCommand:
    """One process that is started on a node: torchrun, or a worker."""

    host: str
    node_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str

    def line(self) -> str:
        """The command as a line to paste into a shell on that node."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        command = shlex.join([*(["env", *env] if env else []), *self.argv])
        return f"cd {shlex.quote(self.cwd)} && {command}"


class Job(Protocol):
    """A run that was started."""

    job_id: str
    cluster: str | None  # where the job has its number
    trouble: str | None  # what went wrong, as far as the launching side can tell
    detached: bool  # it runs on by itself, and nobody waits for it here
    shown: bytes  # the end of what it has printed of the workers' output
    signals: Sequence[int]  # to stop, that this process has been sent since

    def wait(self) -> int:
        """Stay until nothing of the run is left running; its exit code, 0 only if all went well."""
        ...


class Launcher(Protocol):
    """Implemented by each file of launch/launchers/, whose `build(settings)` makes one."""

    def probe(self) -> Facts:
        """Ask the machines.

        Raises:
            MusterError: they cannot run what they should; every problem at once.
        """
        ...

    def assume(self) -> Facts:
        """For a dry run: what can be known without asking anyone."""
        ...

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        """The processes of every node; pure."""
        ...

    def show(self, spec: LaunchSpec, facts: Facts) -> str:
        """What a dry run prints."""
        ...

    def launch(self, spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand]) -> Job:
        """Start the commands of `plan`."""
        ...


@runtime_checkable
class CanSetUp(Protocol):
    """A launcher that can also make the environment on its nodes."""

    def set_up(self, say: Callable[[str], None]) -> None:
        """Make it; raises `MusterError` with a line for every node on which that failed."""
        ...
