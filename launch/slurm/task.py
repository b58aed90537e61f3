"""What srun starts: one agent per node around torchrun, or one per worker around that worker.

srun --ntasks-per-node=1 python -m launch.slurm.task torchrun RUN_DIR
srun --ntasks-per-node=4 python -m launch.slurm.task manual RUN_DIR
"""

import os
import sys
from pathlib import Path

from configs import cli, plugins
from configs.plugins import REPOSITORY
from launch.agent.assignment import Assignment, Command
from launch.agent.processes import process_tree
from launch.agent.supervisor import Agent
from launch.nodes import gpus
from launch.slurm import job_files
from launch.slurm.allocation import Allocation, Task
from launch.spec import Facts, LaunchSpec, NodeFacts, NodeSpec
from launch.starters import manual
from muster.errors import MusterError, UsageError


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in (known := plugins.names("launch.starters")):
        raise UsageError(f"usage: python -m launch.slurm.task {{{','.join(known)}}} RUN_DIR")
    return act(Path(sys.argv[2]))


def act(run_dir: Path) -> int:
    """Be the agent that this task is to be, to the end; the task's exit code.

    Raises:
        MusterError: this is no task of a Slurm job, or not one such as was planned.
    """
    process_tree.die_with_parent()  # Slurm's own supervisor: without it nobody could end us
    allocation, task = Allocation.from_env(os.environ), Task.from_env(os.environ)
    spec, job = job_files.read_spec(run_dir)
    head = job_files.read_head(run_dir, allocation)
    planned = job["nproc"][task.node_rank]
    nproc = gpus.count() if planned == "gpu" else int(planned)
    if not nproc:
        raise MusterError(
            f"{task.host}: --nproc-per-node gpu, but the job shows no GPU here; ask for some "
            "with --gpus-per-node"
        )
    per_node = spec.workers != "manual"
    if per_node and task.count != task.num_nodes:
        raise MusterError(
            f"{task.count} tasks on {task.num_nodes} nodes; {spec.workers} needs one per node, "
            "which starts that node's workers: --ntasks-per-node=1"
        )
    address = str(head["address"])
    make = _node if per_node else _worker
    assignment = Assignment(
        run_id=spec.run_id,
        run_dir=str(run_dir),
        cwd=str(REPOSITORY),
        index=task.rank,
        count=task.count,
        name=task.host if per_node or task.local_count == 1 else f"{task.host}.{task.rank}",
        workers=nproc if per_node else 1,
        commands=(make(spec, task, address, job["master_port"], nproc),),
        head_address=address,
        head_ports=tuple(head["ports"]),
        master_port=job["master_port"],
        token=str(head["token"]),
        network=job["network"],
        ports=spec.ports,
        join_s=spec.join_s,
        stop_grace_s=spec.stop_grace_s,
    )
    return Agent(assignment, launcher=None).run()


def act_for_submitit(run_dir: str) -> None:
    """What submitit calls in each task: as `act`, but it ends the process with its exit code.

    submitit would turn every failure into exit code 1.
    """
    try:
        code = act(Path(run_dir))
    except MusterError as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        code = error.exit_code
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _node(spec: LaunchSpec, task: Task, address: str, port: int | None, nproc: int) -> Command:
    node = NodeFacts(
        spec=NodeSpec(task.host, nproc),
        name=task.host,
        python=sys.executable,
        repository=str(REPOSITORY),
        nproc=nproc,
    )
    facts = Facts((node,) * task.num_nodes, address, port)
    (command,) = plugins.load("launch.starters", spec.workers)(spec, facts, task.node_rank)
    return Command(command.argv, command.env)


def _worker(spec: LaunchSpec, task: Task, address: str, port: int | None, nproc: int) -> Command:
    identity = manual.variables(
        rank=task.rank,
        world_size=task.count,
        local_rank=task.local_rank,
        local_world_size=task.local_count,
        node_rank=task.node_rank,
        num_nodes=task.num_nodes,
        master_addr=address,
        master_port=port,
    )
    argv = (sys.executable, "-m", spec.module, *spec.worker_argv)
    return Command(argv, {**spec.env, **identity})


if __name__ == "__main__":
    cli.run(main)
