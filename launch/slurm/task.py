"""What srun starts: one agent per node around torchrun, or one per worker around that worker.

srun --ntasks-per-node=1 python -m launch.slurm.task RUN_DIR
"""

import os
import sys
from pathlib import Path

from configs import cli
from configs.plugins import REPOSITORY
from launch.agent.assignment import Assignment
from launch.agent.processes import process_tree
from launch.agent.supervisor import Agent
from launch.nodes import gpus
from launch.slurm import job_files
from launch.slurm.allocation import Allocation, Task
from launch.spec import Facts, NodeFacts, NodeSpec
from launch.starters.base import starter_of
from muster.errors import MusterError, UsageError


def main() -> int:
    if len(sys.argv) != 2:
        raise UsageError("usage: python -m launch.slurm.task RUN_DIR")
    return act(Path(sys.argv[1]))


def act(run_dir: Path) -> int:
    """Be the agent that this task is to be, to the end; the task's exit code.

    Raises:
        MusterError: this is no task of a Slurm job, or not one such as was planned.
    """
    process_tree.die_with_parent()  # Slurm's own supervisor: without it nobody could end us
    allocation, task = Allocation.from_env(os.environ), Task.from_env(os.environ)
    spec, job = job_files.read_spec(run_dir)
    coordinator = job_files.read_coordinator(run_dir, allocation)
    planned = job["nproc"][task.node_rank]
    nproc = gpus.count() if planned == "gpu" else int(planned)
    if not nproc:
        raise MusterError(
            f"{task.host}: --nproc-per-node gpu, but the job shows no GPU here; ask for some "
            "with --gpus-per-node"
        )
    starter = starter_of(spec.workers)
    per_node = starter.one_per_node
    if per_node and task.count != task.num_nodes:
        raise MusterError(
            f"{task.count} tasks on {task.num_nodes} nodes; {spec.workers} needs one per node, "
            "which starts that node's workers: --ntasks-per-node=1"
        )
    address = str(coordinator["address"])
    counts = task.tasks_per_node if not per_node else (nproc,) * task.num_nodes
    nodes = tuple(
        NodeFacts(NodeSpec(task.host, count), task.host, sys.executable, str(REPOSITORY), count)
        for count in counts
    )
    facts = Facts(nodes, address, job["master_port"])
    commands = starter.commands(spec, facts, task.node_rank)
    assignment = Assignment(
        run_id=spec.run_id,
        run_dir=str(run_dir),
        cwd=str(REPOSITORY),
        index=task.rank,
        count=task.count,
        name=task.host if per_node or task.local_count == 1 else f"{task.host}.{task.rank}",
        workers=nproc if per_node else 1,
        commands=(commands[0 if per_node else task.local_rank],),
        coordinator_address=address,
        coordinator_ports=tuple(coordinator["ports"]),
        master_port=job["master_port"],
        token=str(coordinator["token"]),
        network=job["network"],
        ports=spec.ports,
        join_s=spec.join_s,
        stop_grace_s=spec.stop_grace_s,
        hang_after_s=spec.hang_after_s,
        on_hang=spec.on_hang,
        attempt=spec.attempt + spec.requeued,
        env=spec.secrets,
        prologue=spec.prologue,
        ends_unix_s=coordinator.get("ends_unix_s"),
    )
    return Agent(assignment, launcher=None).run()


if __name__ == "__main__":
    cli.run(main)
