"""From what is wanted and what is known to the processes of every node, and to their agents."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from configs import plugins
from launch.agent.agent_job import AgentCommand
from launch.agent.assignment import Assignment, Command
from launch.nodes.ports import among
from launch.spec import Facts, LaunchSpec, NodeCommand
from muster import run_files
from muster.writing import writing


def commands(spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
    """The processes of every node; pure."""
    style = plugins.load("launch.starters", spec.workers)
    return [
        command
        for node_rank in range(len(facts.nodes))
        for command in style(spec, facts, node_rank)
    ]


def show(spec: LaunchSpec, facts: Facts) -> str:
    """The lines that one could paste into a shell on each node."""
    return "\n".join(command.line() for command in commands(spec, facts))


def agent_commands(
    spec: LaunchSpec,
    facts: Facts,
    plan: Sequence[NodeCommand],
    start: Callable[[int], tuple[Sequence[str], Path]],
) -> list[AgentCommand]:
    """The agent of every node; `start` gives the command that starts it, and from where."""
    token = secrets.token_hex(16)
    proof = run_files.SHARED.path(spec.run_dir, name=secrets.token_hex(8))
    with writing(proof):
        proof.parent.mkdir(exist_ok=True)
        proof.touch()
    found = []
    for index, node in enumerate(facts.nodes):
        own = [command for command in plan if command.node_rank == index]
        argv, cwd = start(index)
        assignment = Assignment(
            run_id=spec.run_id,
            run_dir=str(spec.run_dir) if facts.shared else f"logs/{spec.run_id}",
            cwd=own[0].cwd,
            index=index,
            count=len(facts.nodes),
            name=node.name,
            workers=int(node.nproc),
            commands=tuple(Command(one.argv, one.env) for one in own),
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
        found.append(AgentCommand(tuple(argv), cwd, assignment))
    return found
