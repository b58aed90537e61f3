"""What a node's workers are told of their run, beside what torchrun tells them."""

import math
import os
from collections.abc import Mapping
from pathlib import Path

from launch.agent.assignment import Assignment
from launch.agent.stopping import STOPPABLE
from launch.nodes import gpus
from launch.nodes.interface import variables
from muster.run_files import CHECKPOINTS

INSPECTION = "inspection"  # below an agent's scratch folder

SPARE_S = 5


def environment_of(
    assignment: Assignment, interface: str | None, address: str, scratch: str
) -> dict[str, str]:
    """The environment of torchrun, or of each worker, on this node.

    In `scratch` there are the folders where workers say that they can stop in order, and answer
    what they are doing.
    """
    run_dir = Path(assignment.run_dir).absolute()
    env = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_RUN_ID": assignment.run_id,
        "MUSTER_ATTEMPT": str(assignment.attempt),
        "MUSTER_CHECKPOINTS": str(CHECKPOINTS.path(run_dir)),
        "MUSTER_STOPPABLE": str(Path(scratch, STOPPABLE)),
        "MUSTER_INSPECTION": str(Path(scratch, INSPECTION)),
        # a worker that starts as all is ending can tell that it is late
        "MUSTER_LAUNCHER": str(os.getpid()),
        **assignment.env,
    }
    # torchrun's own patience with workers that were sent SIGTERM; how long they have is ours to say
    patience_s = math.ceil(assignment.stop_grace_s) + SPARE_S
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(patience_s))
    if not gpus.count():  # else Accelerate takes every worker for a run of its own
        env.setdefault("ACCELERATE_USE_CPU", "true")
    for name, value in variables(interface, address).items():
        env.setdefault(name, value)
    return env


def with_tmpdir(env: Mapping[str, str], scratch: str) -> dict[str, str]:
    """`scratch` for torchrun's temporary folders, which it never removes; the user's for workers.

    Theirs is the one that --env or a prologue has set, else the node's own; `worker_main.py` puts
    it back.
    """
    return {**env, "TMPDIR": scratch, "MUSTER_USER_TMPDIR": env.get("TMPDIR", "")}
