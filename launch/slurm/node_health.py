"""Which nodes of a job answer: a step of nothing takes place on all of them.

One step asks all nodes at once. Those that it does not reach are asked again, each by itself,
together with one that has answered: it does so again as soon as the controller does, so that a busy
controller is not taken for nodes that are gone.
"""

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

# Where all is well a step takes a fraction of a second; a node that is gone never answers.
PATIENCE_S = 10.0  # after others have answered
CONTROLLER_S = 60.0  # while nobody has
RETRY_S = 2.0
TICK_S = 0.05
STEP = ["srun", "--overlap", "--ntasks-per-node=1", "--quiet"]


def answers(names: Sequence[str], env: Mapping[str, str]) -> dict[str, bool]:
    """For each of these nodes of the job whose variables are in `env`, whether it answers."""
    reached = _reached_at_once(names, env)
    missing = [name for name in names if name not in reached]
    deadline = time.monotonic() + CONTROLLER_S
    while missing:
        here = next((name for name in names if name in reached), names[0])
        one_by_one = _reached_one_by_one([here, *missing], env)
        if here in one_by_one or time.monotonic() > deadline:
            reached |= one_by_one
            break
        time.sleep(RETRY_S)
    return {name: name in reached for name in names}


def _reached_at_once(names: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """The nodes that one step on all of them has reached."""
    count = len(names)
    with tempfile.TemporaryFile() as output:
        asked = [*STEP, f"--nodes={count}", f"--ntasks={count}", f"--nodelist={','.join(names)}"]
        asked += ["printenv", "SLURMD_NODENAME"]
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
    """The nodes that a step of their own has reached; the first of them should answer."""
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
