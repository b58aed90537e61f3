"""Which nodes of a job answer: a step of nothing is started on each of them at once."""

import subprocess
import time
from collections.abc import Mapping, Sequence

from configs.errors import MusterError
from launch.slurm.job import Allocation

# Where all is well a step takes a fraction of a second; a node that is gone never answers.
PATIENCE_S = 10.0
STEP = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--quiet"]


def answers(allocation: Allocation, env: Mapping[str, str]) -> dict[str, bool]:
    """For each node of this job, in Slurm's order, whether it answers.

    To be asked in the batch script, with no other step running.

    Raises:
        MusterError: Slurm does not even say which nodes these are.
    """
    asked = {
        name: subprocess.Popen(
            [*STEP, f"--nodelist={name}", "true"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in _names(allocation)
    }
    deadline = time.monotonic() + PATIENCE_S
    return {name: _succeeds(step, deadline) for name, step in asked.items()}


def srun_options(answer: Mapping[str, bool], tasks_per_node: Sequence[int]) -> list[str]:
    """What srun is told so that a step takes place on the nodes that answer, and on no others.

    It overlaps with the step before, which Slurm holds to be running while a node of it is gone.
    """
    here = [name for name, one in answer.items() if one]
    counts = dict(zip(answer, tasks_per_node, strict=True))
    tasks = sum(counts[name] for name in here)
    places = f"--nodelist={','.join(here)}"
    return ["--overlap", f"--nodes={len(here)}", f"--ntasks={tasks}", places]


def _names(allocation: Allocation) -> list[str]:
    asked = ["scontrol", "show", "hostnames", allocation.nodelist]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    names = done.stdout.split()
    if done.returncode or len(names) != allocation.num_nodes:
        raise MusterError(f"Slurm names no nodes of job {allocation.name}: {done.stderr.strip()}")
    return names


def _succeeds(step: "subprocess.Popen[bytes]", deadline: float) -> bool:
    try:
        return step.wait(max(0.0, deadline - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        step.kill()  # its end would wait for the node that is gone, too
        step.wait()
        return False
