"""What to start, as values: a launcher plans commands from them and starts what it planned."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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


WORKER_MAIN = "muster/worker/worker_main.py"  # what every worker starts as, below a node's checkout
RUN_MODULE = "muster/run_module.py"  # stands for `-m`, but not for its folder on the path
# After these words stands the port in a plan's command lines.
PORT_FLAGS = ("--master-port", "--main_process_port")


@dataclass(frozen=True)
class Program:
    """What every worker becomes."""

    # As muster/worker/worker_main.py takes it: SCRIPT ..., -m MODULE ..., or --exec COMMAND ...
    argv: tuple[str, ...]
    cwd: str | None = None  # where it starts; None: in the checkout, as what is ours
    python: str | None = None  # what runs it; None: the Python of the node's checkout
    wrap: tuple[str, ...] = ()  # a command in front of each worker
    source: str = ""  # where the user has it, or which task it has: the same in all its runs
    takes_resume: bool = False  # a restart tells it --resume auto, once it has a checkpoint

    @classmethod
    def module(cls, name: str, *flags: str, takes_resume: bool = False) -> "Program":
        """`python -m name flags`, of this checkout."""
        return cls(("-m", name, *flags), takes_resume=takes_resume)


@dataclass(frozen=True)
class LaunchSpec:
    """One run: what is started, whatever the machines are like."""

    run_id: str
    run_dir: Path
    program: Program
    env: Mapping[str, str] = field(default_factory=dict)
    workers: str = "torchrun"  # what starts them, a file of launch/starters/
    preload: str = ""  # modules to import before the workers are forked, with commas between
    join_s: float = 120.0  # how long nodes wait for each other
    stop_grace_s: float = 60.0  # for workers that are asked to stop
    hang_after_s: float | None = None  # without progress; None: by its longest pause; 0: never
    on_hang: str = "warn"  # or stop, or restart
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # env that is not recorded
    prologue: str = ""  # text that each node's shell sources before the workers start
    ports: tuple[int, int] | None = None  # first and last that nodes may meet at; None: any
    attempt: int = 0  # how often it was started before
    requeued: int = 0  # how often its job was, where each time is a run of its own
    max_restarts: int = 0
    least_nodes: int = 1  # with fewer it is not started again
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

    def worker(self, program: Program) -> tuple[str, ...]:
        """What follows Python on the command line of a worker here."""
        worker = (f"{self.repository}/{WORKER_MAIN}", *program.argv)
        if not program.wrap:
            return worker
        return (worker[0], "--exec", *program.wrap, program.python or self.python, *worker)


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
    """One process that is started on a node: torchrun, or a worker.

    A plan holds those of all nodes; an agent is told those of its own.
    """

    host: str
    node_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "NodeCommand":
        return cls(**{**raw, "argv": tuple(raw["argv"])})

    def decided(self, master_port: int) -> "NodeCommand":
        """With the port that node 0 found free, where the plan left it open."""

        argv, env = list(self.argv), dict(self.env)
        # the first is the starter's: what follows is the program's, whatever it says
        at = next((at for at, word in enumerate(argv) if word in PORT_FLAGS), None)
        if at is not None and argv[at + 1 : at + 2] == [DECIDED]:
            argv[at + 1] = str(master_port)
        if env.get("MASTER_PORT") == DECIDED:
            env["MASTER_PORT"] = str(master_port)
        return replace(self, argv=tuple(argv), env=env)

    def line(self) -> str:
        """The command as a line to paste into a shell on that node."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        command = shlex.join([*(["env", *env] if env else []), *self.argv])
        return f"cd {shlex.quote(self.cwd)} && {command}"
