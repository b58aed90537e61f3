"""What to start, as values: a launcher plans commands from them and does what it planned."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol


@dataclass(frozen=True)
class NodeSpec:
    """One machine, how one logs in there, and how many workers it gets.

    Two nodes may share a host, as containers that listen on ports of their own do: a node is
    `user@host:port`.
    """

    host: str
    nproc: int | Literal["gpu"]
    user: str | None = None  # None: as ssh's own configuration says
    port: int | None = None
    address: str | None = None  # on the network between the nodes, where it is known beforehand

    @property
    def name(self) -> str:
        """What one would write into a hosts file."""
        login = f"{self.user}@" if self.user else ""
        return f"{login}{self.host}{f':{self.port}' if self.port else ''}"


@dataclass(frozen=True)
class LaunchSpec:
    """One run: what is started, whatever the machines are like."""

    run_id: str
    run_dir: Path
    nodes: tuple[NodeSpec, ...]
    worker_argv: tuple[str, ...]  # flags of train.worker
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """What only the machines know; a launcher's `probe` asks them."""

    python: str
    repository: Path
    master_addr: str
    master_port: int
    nproc: tuple[int, ...]  # workers of each node, its GPUs counted


@dataclass(frozen=True)
class NodeCommand:
    """What runs on one node."""

    host: str
    node_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path

    def line(self) -> str:
        """The command as a line to paste into a shell on that node."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        command = shlex.join([*(["env", *env] if env else []), *self.argv])
        return f"cd {shlex.quote(str(self.cwd))} && {command}"


class Job(Protocol):
    """A run that was started."""

    job_id: str
    shown: bytes  # the end of what it has printed of rank 0's output

    def wait(self) -> int:
        """Stay until nothing of the run is left running; its exit code, 0 only if all went well."""
        ...


class Launcher(Protocol):
    """Implemented by each file of launch/launchers/, whose `build()` makes one."""

    def probe(self, nodes: Sequence[NodeSpec], master_port: int | None) -> Facts:
        """Ask the machines; without a `master_port`, find a free one on the first.

        Raises:
            MusterError: a machine cannot run what it should.
        """
        ...

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        """The command of every node; pure."""
        ...

    def launch(self, spec: LaunchSpec, plan: Sequence[NodeCommand]) -> Job:
        """Start the commands of `plan`."""
        ...
