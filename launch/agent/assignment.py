"""What one agent is to do: what its launcher tells it, as JSON."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from launch.nodes.ports import among
from launch.spec import Facts, LaunchSpec, NodeCommand
from muster import run_files
from muster.writing import writing


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
    coordinator_address: str
    coordinator_ports: tuple[int, ...]  # tried in turn; (0,) on the coordinator: any free one
    master_port: int | None  # None: one that is free when all agents have met
    token: str  # shown by whoever connects to the coordinator
    network: str | None = None  # of the gradients, such as 10.10.1.0/24; None: the way to node 0
    address: str | None = None  # this node's own; None: the one on the way to node 0
    proof: str = ""  # a name in run_dir, which only a node that shares the launcher's disk has
    ports: tuple[int, int] | None = None  # first and last of those to choose from; None: any
    join_s: float = 120.0
    stop_grace_s: float = 60.0  # for workers that are asked to stop
    hang_after_s: float | None = None  # without progress; None: by its longest pause; 0: never
    on_hang: str = "warn"  # or stop, or restart
    attempt: int = 0  # how often the run was started before
    overwrite: bool = False  # an earlier run's files, on a disk that is not the launcher's
    resumed: bool = False  # from a checkpoint, which then stays
    env: Mapping[str, str] = field(default_factory=dict)
    prologue: str = ""
    ends_unix_s: float | None = None  # when a scheduler ends the job; None: nobody knows

    def left_s(self) -> float | None:
        """Seconds of the job's time that are left."""
        return None if self.ends_unix_s is None else self.ends_unix_s - time.time()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Assignment":
        commands = tuple(NodeCommand.from_json(one) for one in raw["commands"])
        plain = {**raw, "commands": commands, "coordinator_ports": tuple(raw["coordinator_ports"])}
        return cls(**plain)


def assignments_of(
    spec: LaunchSpec,
    facts: Facts,
    plan: Sequence[NodeCommand],
    ends_unix_s: float | None = None,
) -> list[Assignment]:
    """What the agent of every node is told."""
    token = secrets.token_hex(16)
    proof = run_files.SHARED.path(spec.run_dir, name=secrets.token_hex(8))
    with writing(proof):
        proof.parent.mkdir(exist_ok=True)
        proof.touch()
    return [
        Assignment(
            run_id=spec.run_id,
            run_dir=str(spec.run_dir) if facts.shared else f"logs/{spec.run_id}",
            cwd=node.repository,
            index=index,
            count=len(facts.nodes),
            name=node.name,
            workers=int(node.nproc),
            commands=tuple(command for command in plan if command.node_rank == index),
            coordinator_address=facts.master_addr,
            coordinator_ports=tuple(among(spec.ports)) if spec.ports else (0,),
            master_port=facts.master_port,
            token=token,
            network=facts.network,
            address=node.address,
            ports=spec.ports,
            proof=proof.relative_to(spec.run_dir).as_posix(),
            join_s=spec.join_s,
            stop_grace_s=spec.stop_grace_s,
            hang_after_s=spec.hang_after_s,
            on_hang=spec.on_hang,
            attempt=spec.attempt + spec.requeued,
            overwrite=spec.overwrite,
            resumed=spec.resumed,
            env=spec.secrets,
            prologue=spec.prologue,
            ends_unix_s=ends_unix_s,
        )
        for index, node in enumerate(facts.nodes)
    ]
