"""Check whether a Python has everything that Muster's trainer needs, and so can run it."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache

from launch.nodes.node_facts import AGENT_PACKAGES
from muster import extras
from muster.checkout import CHECKOUT

# Without these packages, no worker starts. Only some tasks and metrics need others, which their
# errors name.
ALWAYS = frozenset((*AGENT_PACKAGES, "torch", "numpy", "safetensors", "tqdm"))
# Prints whether the Python is new enough, and which of the modules it lacks.
ASK = """
import sys
sys.path[: not getattr(sys.flags, "safe_path", False)] = []
import importlib.util
print(int(sys.version_info >= (3, 11)))
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
"""


def problems(python: str, needed: Collection[str], trackers: Collection[str] = ()) -> Iterator[str]:
    """A line if `python` cannot run the trainer, and a line for each of the `trackers` it lacks.

    `needed`: the packages that this run needs in addition to those that every run needs.
    """
    packages = extras.packages(extras.TRAINER)
    packages |= {name: extras.MODULES.get(name, name) for name in AGENT_PACKAGES}
    missing = _missing_modules(python, (*packages.values(), *trackers))
    if isinstance(missing, str):
        yield f"{missing}\ntip: choose another Python with --python"
        return
    for name in trackers:
        if name in missing:
            yield f"--log-with {name}: {extras.without_tracker(name, python)}"
    if {name for name in packages if packages[name] in missing} & {*ALWAYS, *needed}:
        names = [name for name in packages if packages[name] in missing]
        yield extras.lacking(extras.TRAINER, names, python)


@cache  # the runs of a sweep have the same Python
def _missing_modules(python: str, modules: tuple[str, ...]) -> Collection[str] | str:
    """The modules that a Python lacks, or a message if it cannot run the trainer at all."""
    if python == sys.executable:
        return [name for name in modules if importlib.util.find_spec(name) is None]
    if shutil.which(python) is None:
        return f"{python}: no such program"
    try:
        done = subprocess.run(
            [python, "-c", ASK, *modules], cwd=CHECKOUT, stdin=subprocess.DEVNULL,
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        is_new, missing = done.stdout.splitlines()[-2:]
    except (OSError, ValueError, subprocess.CalledProcessError):
        return f"{python} does not start as a Python"
    if is_new == "0":
        return f"{python} is older than Python 3.11, which the trainer needs"
    return missing.split()
