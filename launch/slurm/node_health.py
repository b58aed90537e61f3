"""Find which nodes of a job answer: run an empty step on each of them.

Each node is tested by a step of its own, all at the same time. Those that do not answer are tested
again, together with one that has answered. That one answers again as soon as the controller does,
so a busy controller is not mistaken for lost nodes.
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


def silent(names: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Those of these nodes of the job in `env` that do not answer."""
    missing = list(names)
    known = names[0]  # it answers as soon as the controller does
    deadline = running_s() + SLURM_REACHES_NODES_S
    while missing:
        reached = _reached({known, *missing}, env)
        missing = [name for name in missing if name not in reached]
        if known in reached or running_s() > deadline:
            break
        known = next((name for name in names if name not in missing), known)
        time.sleep(SLURM_STEP_TRIED_AGAIN_S)
    return missing


def _reached(names: Collection[str], env: Mapping[str, str]) -> set[str]:
    """The nodes that their own step has reached."""
    left = {
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
    heard_s = running_s()
    while left and running_s() - heard_s <= (
        SLURM_NODES_ANSWER_S if reached else SLURM_REACHES_NODES_S
    ):
        time.sleep(SLURM_NODES_ANSWER_TICK_S)
        for name in [name for name, step in left.items() if step.poll() is not None]:
            heard_s = running_s()
            if left.pop(name).returncode == 0:
                reached.add(name)
    for step in left.values():
        step.kill()  # its end would also wait for the lost node
        step.wait()
    return reached
