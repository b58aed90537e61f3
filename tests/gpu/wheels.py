"""Fetch the packages that a bare machine with a GPU may lack, as wheels that can travel there.

    python3 -m tests.gpu.wheels --folder .whl [--python 3.12] [--list]

On that machine, without an index:

    python3 -m pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl
    PYTHONPATH=/tmp/site python3 -m tests.gpu.check --minutes 5

Versions are those in constraints.txt. For a package without a wheel, one is built here.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs import cli
from muster.checkout import CHECKOUT
from muster.errors import MusterError

# Packages that Muster needs and that a machine with torch, transformers and accelerate lacks.
PACKAGES = ("submitit", "ClusterShell", "msgspec", "python-dotenv", "evaluate", "datasets")
PACKAGES += ("dill", "multiprocess", "seqeval")
MOST_BYTES = 20_000_000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.gpu.wheels", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=Path(".whl"), help="where the wheels go")
    parser.add_argument("--python", default="3.12", help="the Python of the machine")
    parser.add_argument("--list", action="store_true", help="name the packages, fetch nothing")
    args = parser.parse_args(argv)
    wanted = [pinned(name) for name in PACKAGES]
    if args.list:
        print("\n".join(wanted))
        return 0
    args.folder.mkdir(parents=True, exist_ok=True)
    for package in wanted:
        fetch(package, args.folder, args.python)
    paths = sorted(args.folder.glob("*.whl"))
    size = sum(path.stat().st_size for path in paths)
    print(f"{args.folder}: {len(paths)} wheels, {size / 1e6:.1f} MB")
    if size > MOST_BYTES:
        raise MusterError(f"{args.folder}: more than {MOST_BYTES / 1e6:.0f} MB; remove old wheels")
    return 0


def pinned(package: str) -> str:
    """The package with its version, as constraints.txt has it."""
    lines = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def fetch(package: str, folder: Path, python: str) -> None:
    """Fetch a wheel of the package for that Python, or build one that every Python can use.

    Raises:
        MusterError: neither is possible.
    """
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    ready = ["download", "--no-deps", "--only-binary=:all:", "--python-version", python]
    done = call([*pip, *ready, "--dest", str(folder), package])
    if done.returncode:
        before = set(folder.glob("*.whl"))
        built = ["wheel", "--no-deps", "--wheel-dir", str(folder), package]
        done = call([*pip, *built])
        bound = [
            path.name for path in set(folder.glob("*.whl")) - before if "-any" not in path.stem
        ]
        if done.returncode or bound:
            why = f"its wheel {bound[0]} is of this machine alone" if bound else done.stderr.strip()
            raise MusterError(f"{package}: {why}")


def call(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True)


if __name__ == "__main__":
    cli.run(main)
