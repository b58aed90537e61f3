"""Whether a Python has what the trainer that comes with Muster needs; any such Python runs it."""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache

from muster import extras
from muster.checkout import CHECKOUT

# Without these no worker begins; others are for some tasks and metrics, which name them.
ALWAYS = frozenset("torch numpy safetensors tqdm psutil PyYAML rich".split())
OF_BASE = ("psutil", "PyYAML", "rich")  # of the base, what workers need
# Prints whether it is new enough, and which of the modules it lacks.
ASK = """
import sys
sys.path[: not getattr(sys.flags, "safe_path", False)] = []
import importlib.util
print(int(sys.version_info >= (3, 11)))
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
"""


def problems(python: str, needed: Collection[str]) -> Iterator[str]:
    """A line if `python` cannot run the trainer; `needed`: packages beside those of all runs."""
    packages = dict(extras.packages(extras.TRAINER))
    of_base = extras.packages(extras.BASE)
    packages |= {name: of_base[name] for name in OF_BASE if name in of_base}
    lacks = _lacks(python, tuple(packages.values()))
    if isinstance(lacks, str):
        yield f"{lacks}; name another Python with --python"
    elif {name for name in packages if packages[name] in lacks} & {*ALWAYS, *needed}:
        names = [name for name in packages if packages[name] in lacks]
        yield extras.lacking(extras.TRAINER, names, python)


@cache  # the runs of a sweep have one
def _lacks(python: str, modules: tuple[str, ...]) -> Collection[str] | str:
    """The modules that it lacks; a text says why it cannot run ours at all."""
    if python == sys.executable:
        return [name for name in modules if importlib.util.find_spec(name) is None]
    if shutil.which(python) is None:
        return f"{python}: no such program"
    try:
        done = subprocess.run(
            [python, "-c", ASK, *modules], cwd=CHECKOUT, stdin=subprocess.DEVNULL,
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        is_new, lacks = done.stdout.splitlines()[-2:]
    except (OSError, ValueError, subprocess.CalledProcessError):
        return f"{python} is no Python that starts"
    if is_new == "0":
        return f"{python} is older than Python 3.11, which the trainer needs"
    return lacks.split()
