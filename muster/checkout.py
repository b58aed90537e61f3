"""Where the folders of the checkout are: `launch/`, `configs/`, `train/`, `slurm/` and `muster/`.

An installation from a wheel has them below its package `muster`, arranged as in a checkout, so that
they do not hide a user's `train.py` or `configs/`. A checkout, and so an editable installation, has
them beside `muster/`.

Nothing is written into an installation, which may belong to another user.

It needs only the standard library of Python 3.8 or newer.
"""

import os
import sys
from functools import cache

from muster.worker.process import CHECKOUT as CHECKOUT
from muster.worker.process import IS_INSTALLED as IS_INSTALLED

HELP = """usage: muster path

Print the folder that contains slurm/, configs/ and launch/:
  sbatch "$(muster path)/slurm/multinode.sh" -- train.py"""


def own_python() -> str:
    """The Python with the packages of `launch/`: the checkout's, the installation's, or this one.

    `launch/own_python.sh` makes the same search in shell scripts, which have no Python yet.
    """
    pythons = [CHECKOUT / ".venv" / "bin" / "python"]
    if IS_INSTALLED:  # PREFIX/lib/pythonX.Y/site-packages/muster/_checkout
        version = CHECKOUT.parent.parent.parent
        lib = version.parent
        if lib.name in ("lib", "lib64") and version.name.startswith("python"):
            # /usr and ~/.local may have several versions; `python` may be another one
            pythons.append(lib.parent / "bin" / version.name)
    paths = [str(python) for python in pythons if os.path.exists(python)]  # noqa: PTH110 (never raises)
    return next((path for path in paths if _has_packages(path)), sys.executable)


@cache
def _has_packages(python: str) -> bool:
    """Whether a Python finds the packages of `launch/`; `own_python.sh` runs the same check."""
    if python == sys.executable:
        return True
    import subprocess  # imported here: programs import this file

    try:
        argv = [python, "-P", str(CHECKOUT / "muster" / "run_module.py"), "muster.extras"]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:  # not a program
        return False
    return not done.returncode


def nodes_python() -> str:
    """The Python for nodes that see this machine's files: $MUSTER_PYTHON, else `own_python`."""
    return os.environ.get("MUSTER_PYTHON") or own_python()


def main() -> int:
    """`muster path`: print the folder of `slurm/`, for sbatch."""
    words = sys.argv[1:]
    if words[:1] in (["--help"], ["-h"]):
        print(HELP)
        return 0
    if words:
        from muster.errors import UsageError  # imported here: programs import this file

        raise UsageError(f"muster path takes no arguments, but got {words[0]!r}")
    print(CHECKOUT)
    return 0


if __name__ == "__main__":
    from muster import errors

    errors.run(main)
