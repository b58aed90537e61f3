"""Find which nodes of a job answer: run an empty step on each of them.

Each node is tested by a step of its own, all at the same time. Those that do not answer are tested
again, together with one that has answered. That one answers again as soon as the controller does,
so a busy controller is not mistaken for lost nodes.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence

# A healthy step takes a fraction of a second; a node that is gone never answers.
PATIENCE_S = 10.0  # after others have answered
CONTROLLER_S = 60.0  # while no node has answered
RETRY_S = 2.0
TICK_S = 0.05
STEP = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--quiet"]


def silent(names: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Those of these nodes of the job in `env` that do not answer."""
    reached: set[str] = set()
    deadline = time.monotonic() + CONTROLLER_S
    while missing := [name for name in names if name not in reached]:
        here = next((name for name in names if name in reached), names[0])
        found = _reached([here, *missing], env)
        reached |= found
        if here in found or time.monotonic() > deadline:
            break
        time.sleep(RETRY_S)
    return [name for name in missing if name not in reached]


def _reached(names: Sequence[str], env: Mapping[str, str]) -> set[str]:
    """The nodes that their own step has reached."""
    asked = {
        name: subprocess.Popen(
            [*STEP, f"--nodelist={name}", "true"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    }
    ended: dict[str, int] = {}
    heard_s = time.monotonic()
    while len(ended) < len(asked):
        patience_s = PATIENCE_S if 0 in ended.values() else CONTROLLER_S
        if time.monotonic() - heard_s > patience_s:
            break
        time.sleep(TICK_S)
        for name, step in asked.items():
            if name not in ended and (code := step.poll()) is not None:
                ended[name], heard_s = code, time.monotonic()
    for step in asked.values():
        if step.poll() is None:
            step.kill()  # its end would also wait for the lost node
            step.wait()
    return {name for name, code in ended.items() if code == 0}
