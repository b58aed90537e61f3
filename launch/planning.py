"""From what is wanted and what is known to the processes of every node, and to their agents."""

import secrets
from collections.abc import Sequence

from configs import plugins
from launch.agent.assignment import Assignment
from launch.nodes.ports import among
from launch.spec import Facts, LaunchSpec, NodeCommand
from launch.starters.base import Starter
from muster import run_files
from muster.writing import writing


def starter(name: str) -> Starter:
    """What `--workers name` chooses."""
    found: Starter = plugins.load("launch.starters", name)
    return found


def commands(spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
    """The processes of every node; pure."""
    of_node = starter(spec.workers).commands
    return [
        command
        for node_rank in range(len(facts.nodes))
        for command in of_node(spec, facts, node_rank)
    ]


def assignments(spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand]) -> list[Assignment]:
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
            head_address=facts.master_addr,
            head_ports=tuple(among(spec.ports)) if spec.ports else (0,),
            master_port=facts.master_port,
            token=token,
            network=facts.network,
            address=node.address,
            ports=spec.ports,
            proof=proof.relative_to(spec.run_dir).as_posix(),
            join_s=spec.join_s,
            stop_grace_s=spec.stop_grace_s,
            attempt=spec.attempt,
            overwrite=spec.overwrite,
            resumed=spec.resumed,
        )
        for index, node in enumerate(facts.nodes)
    ]
