"""Which nodes of a job answer: a step of nothing takes place on all of them.

One step asks all nodes at once. Those that it does not reach are asked again, each by itself,
together with the node that this is: it answers as soon as the controller does, so that a busy
controller is not taken for nodes that are gone.
"""

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

from launch.slurm.allocation import Allocation
from muster.errors import MusterError

# Where all is well a step takes a fraction of a second; a node that is gone never answers.
PATIENCE_S = 10.0  # after others have answered
CONTROLLER_S = 60.0  # while nobody has
RETRY_S = 2.0
TICK_S = 0.05
STEP = ["srun", "--overlap", "--ntasks-per-node=1", "--quiet"]


def answers(allocation: Allocation, env: Mapping[str, str]) -> dict[str, bool]:
    """For each node of this job, in Slurm's order, whether it answers.

    To be asked in the batch script, on the first node, with no other step running.

    Raises:
        MusterError: Slurm does not even say which nodes these are.
    """
    names = _names(allocation)
    reached = _reached_at_once(names, env)
    missing = [name for name in names if name not in reached]
    deadline = time.monotonic() + CONTROLLER_S
    while missing:
        one_by_one = _reached_one_by_one([names[0], *missing], env)
        if names[0] in one_by_one or time.monotonic() > deadline:
            reached |= one_by_one
            break
        time.sleep(RETRY_S)
    return {name: name in reached for name in names}


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


def _reached_at_once(names: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """The nodes that one step on all of them has reached."""
    count = len(names)
    with tempfile.TemporaryFile() as output:
        asked = [*STEP, f"--nodes={count}", f"--ntasks={count}", "printenv", "SLURMD_NODENAME"]
        step = _start(asked, env, output)
        reached: set[str] = set()
        heard_s = time.monotonic()
        ended = False
        while len(reached) < count and not ended and time.monotonic() - heard_s < PATIENCE_S:
            time.sleep(TICK_S)
            ended = step.poll() is not None
            output.seek(0)
            found = set(output.read().decode(errors="replace").split()) & set(names)
            if found != reached:
                reached, heard_s = found, time.monotonic()
        _end(step)
    return reached


def _reached_one_by_one(names: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """The nodes that a step of their own has reached; the first of them is this one."""
    asked = {
        name: _start([*STEP, "--nodes=1", "--ntasks=1", f"--nodelist={name}", "true"], env)
        for name in names
    }
    ended: dict[str, int] = {}
    heard_s = time.monotonic()
    while len(ended) < len(asked):
        patience_s = PATIENCE_S if names[0] in ended else CONTROLLER_S
        if time.monotonic() - heard_s > patience_s:
            break
        time.sleep(TICK_S)
        for name, step in asked.items():
            if name not in ended and (code := step.poll()) is not None:
                ended[name], heard_s = code, time.monotonic()
    for step in asked.values():
        _end(step)
    return {name for name, code in ended.items() if code == 0}


def _start(
    argv: Sequence[str], env: Mapping[str, str], output: IO[bytes] | int = subprocess.DEVNULL
) -> "subprocess.Popen[bytes]":
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(argv, env=dict(env), stdin=nowhere, stdout=output, stderr=nowhere)


def _end(step: "subprocess.Popen[bytes]") -> None:
    if step.poll() is None:
        step.kill()  # its end would wait for the node that is gone, too
        step.wait()
