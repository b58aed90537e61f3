"""All that a machine with one or more GPUs can show, on one page, written after every row.

    python3 -m tests.gpu.check --page FILE [--minutes 5] [--only ROW]

It runs with the Python that calls it, in a checkout without installation: no make, no environment
of its own, no network; tests.gpu.wheels fetches the packages that such a machine may lack. Every
row is a real run through the launcher: each mode's losses beside those of a single process, several
workers that share one GPU through gloo, 16 bits, compiled layers, ranks that are stopped, killed
and resumed, and steps per second beside hand-written scripts. Rows that show a speed run alone, the
others several at a time. Beside the page is a file of the same name that ends in .json, with all
losses and the end of each failed row's output. With `--device cpu`, the same runs use CPUs, to try
the program itself; such a page shows nothing about GPUs.
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
NEEDED = ("torch", "transformers", "numpy", "msgspec", "psutil", "PyYAML", "rich")  # by every row


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
    made.add_argument("--minutes", type=float, help="end then, whatever has not run")
    made.add_argument(
        "--model", default="small", help="of losses: tiny, small or base, or a folder"
    )
    made.add_argument("--steps", type=int, default=8, help="of runs whose losses are compared")
    made.add_argument("--speed-model", default="base", help="of speeds, likewise")
    made.add_argument("--speed-steps", type=int, default=60, help="of runs whose speed is shown")
    made.add_argument("--batch-size", type=int, default=32, help="of all workers together")
    made.add_argument("--images", type=int, default=256, help="of a batch, for VGG-11's speed")
    made.add_argument("--cores", type=int, help="workers at a time (default: all cores)")
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
