"""Find out which nodes of a job answer, by running an empty step on each of them.

Each node is tested by its own step; all steps run at the same time. Nodes that do not answer are
tested again, together with a reference: a node that has answered. The reference answers again as
soon as the controller does, so a busy controller is not mistaken for lost nodes.
"""

import subprocess
import time
from collections.abc import Collection, Mapping, Sequence

from launch.deadlines import (
    SLURM_NODES_ANSWER_S,
    SLURM_NODES_ANSWER_TICK_S,
    SLURM_REACHES_NODES_S,
    SLURM_STEP_TRIED_AGAIN_S,
)
from launch.nodes.channel import running_s

STEP = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet"]


def silent_nodes(names: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The nodes among `names`, in the job of `env`, that do not answer."""
    missing = list(names)
    reference = names[0]
    deadline = running_s() + SLURM_REACHES_NODES_S
    while missing:
        reached = _reached({reference, *missing}, env)
        missing = [name for name in missing if name not in reached]
        if reference in reached or running_s() > deadline:
            break
        reference = next((name for name in names if name not in missing), reference)
        time.sleep(SLURM_STEP_TRIED_AGAIN_S)
    return missing


def _reached(names: Collection[str], env: Mapping[str, str]) -> set[str]:
    """The nodes on which a step has run."""
    steps = {
        name: subprocess.Popen(
            [*STEP, f"--nodelist={name}", "true"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    }
    reached: set[str] = set()
    last_end_s = running_s()
    while steps and running_s() - last_end_s <= (
        SLURM_NODES_ANSWER_S if reached else SLURM_REACHES_NODES_S
    ):
        time.sleep(SLURM_NODES_ANSWER_TICK_S)
        for name in [name for name, step in steps.items() if step.poll() is not None]:
            last_end_s = running_s()
            if steps.pop(name).returncode == 0:
                reached.add(name)
    for step in steps.values():
        step.kill()  # after SIGTERM, srun would continue to wait for the lost node
        step.wait()
    return reached
