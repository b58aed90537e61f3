"""What to start, as values: a launcher makes a plan of commands from them, and starts the plan."""

import math
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from configs.settings.launch import (
    Bind,
    LaunchConfig,
    OnHang,
    PortRange,
    RunConfig,
    Sending,
    WorkersPerNode,
)
from muster.run_files import SHARED

# In a plan, this stands for a value that is not known yet, such as the port that node 0 chooses
# just before the workers start.
PLACEHOLDER = "<decided on node0>"


@dataclass(frozen=True)
class NodeSpec:
    """One machine, its login, and its number of workers.

    Two nodes may share a host, as containers with their own ports do: a node is `user@host:port`.
    """

    host: str
    nproc: WorkersPerNode
    user: str | None = None  # None: from ssh's configuration
    port: int | None = None
    address: str | None = None  # on the network between the nodes, if known beforehand

    @property
    def name(self) -> str:
        """The node as written in a hosts file."""
        login = f"{self.user}@" if self.user else ""
        if not self.port:
            return f"{login}{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{login}{host}:{self.port}"


@dataclass(frozen=True)
class WorkersPython:
    """What nodes are asked about the Python of a run's workers."""

    packages: tuple[str, ...] = ("torch", "transformers")  # which it must have
    python: str | None = None  # None: Muster's own on each node
    is_chosen_here: bool = False  # then a node that sees this machine's files uses the same


WORKER_MAIN = "muster/worker/worker_main.py"  # starts every worker; a path within a node's checkout
PRELOAD = "muster/worker/preload.py"  # it forks the workers of a node
RUN_MODULE = "muster/run_module.py"  # replaces `-m`, without its folder on the path
# In a plan's command lines, the port stands after these words.
PORT_FLAGS = ("--master-port", "--main_process_port")
RANK_FLAGS = ("--node-rank", "--machine_rank")  # likewise the node's rank


@dataclass(frozen=True)
class Program:
    """The program of every worker."""

    # SCRIPT ..., -m MODULE ..., --exec COMMAND ..., or --function FOLDER
    argv: tuple[str, ...]
    cwd: str | None = None  # where it starts; None: in the checkout, for our own programs
    python: str | None = None  # its interpreter; None: the Python of the node's checkout
    wrap: tuple[str, ...] = ()  # a command in front of each worker
    image: str = ""  # of the container in which a node's processes start; "": none
    mounts: tuple[str, ...] = ()  # what the container sees besides the run's own folders
    project: str = ""  # the target of a snapshot's links, which a container must see; "": none
    takes_resume: bool = False  # a restart adds --resume auto, once it has a checkpoint
    has_placeholders: bool = False  # in its arguments, which each worker replaces

    @classmethod
    def module(cls, name: str, *flags: str, takes_resume: bool = False) -> "Program":
        """`python -m name flags`, of this checkout."""
        return cls(("-m", name, *flags), takes_resume=takes_resume)

    @property
    def worker_argv(self) -> tuple[str, ...]:
        """The arguments of muster/worker/worker_main.py."""
        return ("--fill-in", *self.argv) if self.has_placeholders else self.argv


@dataclass(frozen=True)
class LaunchSpec:
    """One run: what is started, whatever machines it runs on."""

    run_id: str
    run_dir: Path
    program: Program
    env: Mapping[str, str] = field(default_factory=dict)
    workers: str = "torchrun"  # how they are started: a file of launch/starters/
    preload: str = ""  # modules to import before the workers are forked, separated by commas
    join_s: float = 120.0  # how long nodes wait for each other
    stop_grace_s: float = 60.0  # for workers that are asked to stop
    hang_after_s: float | None = None  # without progress; None: by its longest pause; 0: never
    on_hang: OnHang = "warn"
    bind: Bind | None = None  # what workers are bound to; None: see `share_cores`
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # env that is not recorded
    prologue: str = ""  # shell text that each node sources before the workers start
    ports: PortRange | None = None  # for meetings of nodes; None: any
    attempt: int = 0  # how many attempts came before, by its leader or with its job
    max_restarts: int = 0
    least_nodes: int = 1  # with fewer it is not restarted
    overwrite: bool = False  # an earlier run's files, also on nodes with their own disk
    resumed: bool = False  # from a checkpoint, which must not be deleted
    quiet: bool = False
    send: Sending | None = None  # data that every node is to have, by an absolute path here

    @property
    def attempt_number(self) -> int:
        """The number of the attempt as users count, from 1."""
        return self.attempt + 1

    @property
    def progress_every_s(self) -> float:
        """The time between agents' checks of workers' progress; infinite if they need not check."""
        return (
            math.inf if self.hang_after_s == 0 else min(max((self.hang_after_s or 60) / 6, 1), 10)
        )

    @classmethod
    def from_settings(cls, program: Program, run: RunConfig, launch: LaunchConfig) -> "LaunchSpec":
        """The run of `program` with these settings, which include its id."""
        assert run.run_id is not None
        shows_bar = sys.stdout.isatty() and not run.quiet and not launch.detach
        env = {"MUSTER_TTY": str(shutil.get_terminal_size().columns)} if shows_bar else {}
        if run.checkpoint_dir is not None:
            env["MUSTER_CHECKPOINTS"] = str(run.checkpoint_dir)
        return cls(
            run_id=run.run_id,
            run_dir=(run.logs_root / run.run_id).absolute(),
            program=program,
            env=env,
            workers=launch.workers,
            preload=launch.preload or "",
            join_s=run.join_timeout_s,
            stop_grace_s=launch.stop_grace_s,
            hang_after_s=launch.hang_after_s,
            on_hang=launch.on_hang,
            bind=launch.bind,
            ports=launch.port_range,
            max_restarts=launch.max_restarts,
            least_nodes=launch.least_nodes,
            overwrite=run.overwrite,
            resumed=run.is_resumed,
            quiet=run.quiet,
            send=launch.send and replace(launch.send, source=os.path.abspath(launch.send.source)),  # noqa: PTH100 (links stay)
        )

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "run_dir": str(self.run_dir)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "LaunchSpec":
        """The spec from which `to_json` made `raw`.

        Raises:
            msgspec.ValidationError: the spec is of another version; the message names a field.
        """
        spec = msgspec.convert(raw, cls, dec_hook=lambda kind, value: kind(value))  # a Path
        known = spec.to_json()
        unknown = {*raw} - {*known} | {*raw["program"]} - {*known["program"]}
        if unknown:
            raise msgspec.ValidationError(f"Object contains unknown field `{min(unknown)}`")
        return spec


@dataclass(frozen=True)
class NodeFacts:
    """The facts about a node that only the node itself can provide."""

    spec: NodeSpec
    name: str  # in messages and before its workers' lines
    python: str
    repository: str
    nproc: WorkersPerNode
    address: str | None = None  # on the network for gradients
    shared: bool = True  # whether it sees this machine's checkout
    plugins: tuple[str, ...] | None = None  # what its Python's packages add; None: not asked
    data: str = ""  # where it has the data of --send

    def worker(self, program: Program) -> tuple[str, ...]:
        """The arguments that Python is given for a worker on this node."""
        worker = (f"{self.repository}/{WORKER_MAIN}", *program.worker_argv)
        if not program.wrap:
            return worker
        return (worker[0], "--exec", *program.wrap, program.python or self.python, *worker)


@dataclass(frozen=True)
class Facts:
    """The facts that only the machines can provide; a launcher's `probe` asks them.

    A dry run asks no machine: unknown facts are `PLACEHOLDER`, or None.
    """

    nodes: tuple[NodeFacts, ...]
    master_addr: str
    master_port: int | None = None  # None: node 0 finds one just before the workers start
    network: str | None = None
    nodes_connect: bool = True  # to node 0, before their workers start; see connections.py

    @property
    def shared(self) -> bool:
        """Whether all nodes see this machine's checkout and run folders."""
        return all(node.shared for node in self.nodes)

    @property
    def counts(self) -> list[int]:
        """The workers of each node, once all GPUs have been counted."""
        return [number for number in self._numbers if number is not None]

    @property
    def world_size(self) -> int | None:
        """The number of workers; None while a node's GPUs have not been counted."""
        return None if None in self._numbers else sum(self.counts)

    @property
    def _numbers(self) -> list[int | None]:
        return [node.nproc.number for node in self.nodes]

    @property
    def size(self) -> str:
        """The part of a run's name that describes its size."""
        return size_of([node.nproc for node in self.nodes])


def size_of(counts: Sequence[WorkersPerNode]) -> str:
    """`4x1`, or `1+2` if nodes differ."""
    each = "+".join(map(str, counts))
    return f"{len(counts)}x{counts[0]}" if len(set(counts)) == 1 else each


@dataclass(frozen=True)
class NodeCommand:
    """One process that is started on a node: torchrun, or a worker.

    A plan has the commands of all nodes; an agent gets the commands of its own node.
    """

    host: str
    node_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    starter: str = ""  # the value of `--workers`
    rank: int | None = None  # of the worker that this is; None: it starts all workers of the node

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "NodeCommand":
        return cls(**{**raw, "argv": tuple(raw["argv"])})

    def with_port(self, master_port: int) -> "NodeCommand":
        """The command with the port that node 0 found, if the plan left it open."""
        argv = list(self.argv)
        env = dict(self.env)
        # the first is the starter's; the rest belongs to the program, whatever it is
        at = next((at for at, word in enumerate(argv) if word in PORT_FLAGS), None)
        if at is not None and argv[at + 1 : at + 2] == [PLACEHOLDER]:
            argv[at + 1] = str(master_port)
        if env.get("MASTER_PORT") == PLACEHOLDER:
            env["MASTER_PORT"] = str(master_port)
        return replace(self, argv=tuple(argv), env=env)

    def for_node_rank(self, node_rank: int) -> "NodeCommand":
        """This command for another node; unchanged if more than the node's rank would differ."""
        argv = list(self.argv)
        at = next((at for at, word in enumerate(argv) if word in RANK_FLAGS), None)
        if at is None or argv[at + 1 : at + 2] != [str(self.node_rank)]:
            return self
        argv[at + 1] = str(node_rank)
        return replace(self, argv=tuple(argv), node_rank=node_rank, host="")

    def line(self) -> str:
        """The command as a line to paste into a shell on that node."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        command = shlex.join([*(["env", *env] if env else []), *self.argv])
        return f"cd {shlex.quote(self.cwd)} && {command}"


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One agent's part of a run; `index` counts nodes from 0."""

    spec: LaunchSpec  # its folder is a path as this node sees it, from `cwd`
    cwd: str
    index: int
    counts: tuple[int, ...]  # the workers of each node
    name: str  # of the node, in messages
    ranks: tuple[int, ...]  # of the workers of this node
    machine_ranks: tuple[int, ...]  # also those of other nodes that its machine simulates
    commands: tuple[NodeCommand, ...]
    coordinator_address: str  # of node 0 on the network for gradients
    nodes_connect: bool  # to node 0, before their workers start; see connections.py
    # Node 0 listens at the first free one of these (0 is any port); other nodes are told which.
    coordinator_ports: tuple[int, ...]
    master_port: int | None  # None: one that is free just before the workers start
    store_secret: str  # with which the keys of our trainer's store begin
    network: str | None = None  # for gradients, such as 10.10.1.0/24; None: the way to node 0
    address: str | None = None  # of this node in it; None: its address on the way to node 0
    # a file in the run folder that only nodes with the launcher's disk can see
    disk_marker: str = ""
    ends_unix_s: float | None = None  # when a scheduler ends the job; None: unknown
    data: str = ""  # where this node has the data of --send

    @property
    def count(self) -> int:
        """The number of nodes."""
        return len(self.counts)

    def left_s(self) -> float | None:
        """The seconds that remain of the job's time."""
        return None if self.ends_unix_s is None else self.ends_unix_s - time.time()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "spec": self.spec.to_json()}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Assignment":
        spec = LaunchSpec.from_json(raw["spec"])
        commands = tuple(NodeCommand.from_json(command) for command in raw["commands"])
        names = ("counts", "ranks", "machine_ranks", "coordinator_ports")
        lists = {name: tuple(raw[name]) for name in names}
        return cls(**{**raw, **lists, "spec": spec, "commands": commands})


def assignments_of(
    spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand], ends_unix_s: float | None = None
) -> list[Assignment]:
    """The assignment of every node's agent."""
    store_secret = secrets.token_hex(32)
    marker = SHARED.path(spec.run_dir, name=secrets.token_hex(8))
    ports = range(spec.ports.first, spec.ports.last + 1) if spec.ports else (0,)
    seen = spec if facts.shared else replace(spec, run_dir=Path("logs", spec.run_id))
    ends = list(accumulate(facts.counts))
    ranks = [tuple(range(end - count, end)) for count, end in zip(facts.counts, ends, strict=True)]
    ranks_by_machine: dict[str, tuple[int, ...]] = {}
    for node, own in zip(facts.nodes, ranks, strict=True):
        ranks_by_machine[node.spec.name] = ranks_by_machine.get(node.spec.name, ()) + own
    return [
        Assignment(
            spec=seen,
            cwd=node.repository,
            index=index,
            counts=tuple(facts.counts),
            name=node.name,
            ranks=ranks[index],
            machine_ranks=ranks_by_machine[node.spec.name],
            commands=tuple(command for command in plan if command.node_rank == index),
            coordinator_address=facts.master_addr,
            nodes_connect=facts.nodes_connect,
            coordinator_ports=tuple(ports),
            master_port=facts.master_port,
            store_secret=store_secret,
            network=facts.network,
            address=node.address,
            disk_marker=marker.relative_to(spec.run_dir).as_posix(),
            ends_unix_s=ends_unix_s,
            data=node.data,
        )
        for index, node in enumerate(facts.nodes)
    ]
