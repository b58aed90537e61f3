"""All that a machine with one or more GPUs can show, on one page, written after every row.

    python3 -m tests.gpu.check --page FILE [--minutes 8] [--only ROW] [--model base] [--steps 40]

It runs with the Python that calls it, in a checkout without installation: no make, no environment
of its own, no network. Every row is a real run through the launcher: each mode's losses beside
those of a single process, several workers that share one GPU through gloo, fp16 and bf16, compiled
layers, a run that is stopped and resumed, what a worker's GPU holds, and steps per second beside a
hand-written DDP script. With `--device cpu` the same runs take CPUs, to try the program itself:
such a page shows no GPU.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from configs import cli
from muster import extras
from muster.checkout import CHECKOUT
from muster.errors import UsageError

PAGE = CHECKOUT / "logs" / "gpu-check.md"
NEEDED = ("torch", "transformers", "numpy", "psutil", "PyYAML", "rich")  # by every row


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    missing = missing_packages()
    if lacking := [name for name in NEEDED if name in missing]:
        raise UsageError(
            f"{sys.executable} has no {', '.join(lacking)}, which every row needs; "
            f"install with {sys.executable} -m pip install {' '.join(lacking)}"
        )
    from tests.gpu import trial  # it imports them

    return trial.run_all(args, missing)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python3 -m tests.gpu.check", description=(__doc__ or "").splitlines()[0]
    )
    made.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    made.add_argument(
        "--only",
        action="append",
        metavar="ROW",
        help="rows of this name (also: NAME, WORKERS); repeat it",
    )
    made.add_argument("--minutes", type=float, help="skip the rows that no longer fit into these")
    made.add_argument("--model", default="base", help="small or base (made here), or a folder")
    made.add_argument("--steps", type=int, default=40, help="of each run")
    made.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.set_defaults(lr=1e-4, seed=42)
    return made


def missing_packages() -> list[str]:
    """What setup.cfg asks for, and this Python does not have."""
    needed = {name for extra in extras.USES for name in extras.packages(extra)}
    return [name for name in sorted(needed, key=str.lower) if not has(name)]


def has(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    cli.run(main)
