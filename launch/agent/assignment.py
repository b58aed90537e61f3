"""What one agent is to do: what its launcher tells it, as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from launch.spec import NodeCommand


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One agent's part of a run; `index` counts agents from 0, whose node all others meet at."""

    run_id: str
    run_dir: str  # as this node sees it; relative to `cwd`
    cwd: str
    index: int
    count: int
    name: str  # of the node, in messages
    workers: int
    commands: tuple[NodeCommand, ...]
    head_address: str
    head_ports: tuple[int, ...]  # tried in turn; (0,) on the head: any free one
    master_port: int | None  # None: one that is free when all agents have met
    token: str  # shown by whoever connects to the head
    network: str | None = None  # of the gradients, such as 10.10.1.0/24; None: what leads to head
    address: str | None = None  # this node's own; None: the one from which it reaches the head
    proof: str = ""  # a name in run_dir, which only a node that shares the launcher's disk has
    ports: tuple[int, int] | None = None  # first and last of those to choose from; None: any
    join_s: float = 120.0
    stop_grace_s: float = 60.0  # for workers that are asked to stop
    attempt: int = 0  # how often the run was started before
    overwrite: bool = False  # an earlier run's files, on a disk that is not the launcher's
    resumed: bool = False  # from a checkpoint, which then stays
    env: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Assignment":
        commands = tuple(NodeCommand.from_json(one) for one in raw["commands"])
        plain = {**raw, "commands": commands, "head_ports": tuple(raw["head_ports"])}
        return cls(**plain)
