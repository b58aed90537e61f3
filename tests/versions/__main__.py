"""The library's tests, and a run of each launcher, on other versions of torch: docs/library.md.

    make versions ARGS='2.6.0@3.10 2.15.0@3.13'

Each version gets an environment of its own from pip's index (the CUDA build, about 6 GB, which runs
on CPUs), with the Python after the `@` or the toolkit's own; it is removed when its turn is over.
The output is what docs/library.md states. As root, ssh and Slurm are the testbed's; otherwise, only
the tests are run. Losses are compared with those of DDP, of one process, and of the torch that the
toolkit itself has.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any
from unittest import mock

from muster.checkout import CHECKOUT
from tests.train.workers import read_json, run_on_ranks

PROGRAM = Path(__file__).with_name("program.py")
# Packages that the library's tests import in addition to torch.
PACKAGES = (
    "numpy psutil safetensors cloudpickle threadpoolctl pytest pytest-timeout hypothesis vermin"
    " PyYAML python-dotenv tqdm"
).split()
# Tests of modules that a user's program loads, but not those that use the toolkit's own trainer.
TESTS = """
    tests/train/program tests/train/records/test_traffic.py
    tests/train/batches/test_plan.py tests/train/batches/test_steps.py
    tests/train/checkpoints/test_storage.py tests/train/checkpoints/test_exchange.py
    tests/train/distributed/test_rendezvous.py tests/train/distributed/test_world.py
    tests/train/sync/test_data_parallel.py tests/train/sync/test_sparse_rows.py
    tests/train/sync/test_flat.py tests/train/sync/test_buffers.py
    tests/train/sync/ddp/test_reducer.py
    tests/train/sync/test_process_groups.py
    tests/train/sync/compression/test_compression.py
    tests/train/sync/modes/test_gather_scatter.py tests/train/sync/modes/test_ddp.py
    tests/muster/worker/test_inspection.py tests/muster/worker/test_worker_main.py
    tests/muster/worker/test_worker_end.py
    tests/muster/worker/test_function_call.py tests/muster/test_rank_variables.py
""".split()
NOT_RUN = "not run"  # not a failure
CLOSE = 1e-12  # of losses in float64, which are about 1
NEAR = 1e-4  # of compressors, which round, between two versions of torch


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make versions", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("versions", nargs="+", metavar="TORCH[@PYTHON]", help="such as 2.6.0@3.10")
    failed = False
    for wanted in parser.parse_args(argv).versions:
        torch, _, python = wanted.partition("@")
        python = python or ".".join(map(str, sys.version_info[:2]))
        with tempfile.TemporaryDirectory(prefix="muster-versions-") as name:
            found, problems = tried(torch, python, Path(name))
        title = f"{datetime.date.today()}: torch {torch}, Python {python}"
        print(", ".join([title, *found, "; ".join(problems) or "all is right"]), flush=True)
        failed |= any(not line.startswith(NOT_RUN) for line in problems)
    return int(failed)


def tried(torch: str, python: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return the findings for this torch and this Python, and the problems."""
    if (base := interpreter(python)) is None:
        return [], [f"{NOT_RUN}: no Python {python} here"]
    if (own := new_environment(base, torch, folder)) is None:
        return [], [f"no torch {torch} for Python {python}"]
    version = output(own, "-c", "import platform; print(platform.python_version())")
    passed, problems = tested(own)
    runs = launched(own, folder) if os.geteuid() == 0 else {}
    reference = by_own_torch(folder) if runs else {}
    found = [version, f"{passed} tests pass"]
    for name, one in runs.items():
        wrong = list(wrong_with(one, reference))
        problems += [f"{name}: {line}" for line in wrong]
        found += [] if wrong else [f"{name} by {far(one):.0e}"]
    return found, problems


def interpreter(python: str) -> str | None:
    """Return a Python of that version that really starts, or None if there is none."""
    managed = Path.home().glob(f".pyenv/versions/{python}*/bin/python")
    for one in (shutil.which(f"python{python}"), *map(str, managed)):
        if one and subprocess.run([one, "-c", "import venv"], capture_output=True).returncode == 0:
            return one
    return None


def new_environment(python: str, torch: str, folder: Path) -> str | None:
    """Return the Python of a new environment with that torch, or None if pip's index has none."""
    own = str(folder / "env" / "bin" / "python")
    subprocess.run([python, "-m", "venv", str(folder / "env")], check=True)
    pip = [own, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"torch=={torch}", *PACKAGES], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    # As in every process that Muster starts, `import muster` finds this checkout.
    packages = output(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(packages, "muster.pth").write_text(f"{CHECKOUT / 'muster' / 'on_path'}\n", "utf-8")
    return own


def output(python: str, *words: str) -> str:
    done = subprocess.run([python, *words], cwd=CHECKOUT, text=True, stdout=subprocess.PIPE)
    done.check_returncode()
    return done.stdout.strip()


def tested(python: str) -> tuple[str, list[str]]:
    """Return how many tests passed, and the problem if some did not."""
    words = ["-q", "-rfE", "-p", "no:cacheprovider", "-k", "not accelerate"]
    pytest = [python, "-m", "pytest", *TESTS, *words]
    done = subprocess.run(pytest, cwd=CHECKOUT, text=True, stdout=subprocess.PIPE)
    if done.returncode:
        print(done.stdout[-8000:], file=sys.stderr)
    passed = re.search(r"(\d+) passed", done.stdout)
    return passed[1] if passed else "0", ["tests fail"] if done.returncode else []


def launched(python: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the program's results under each launcher."""
    box = [str(CHECKOUT / "tests" / "cluster" / "boxed.sh"), sys.executable]
    found = output(*box, "-m", "tests.versions.launchers", python, str(folder))
    runs: dict[str, dict[str, Any]] = json.loads(found.splitlines()[-1])
    return runs


def by_own_torch(folder: Path) -> dict[str, Any]:
    """Return the program's results with the toolkit's own torch."""
    found = folder / "own.json"
    with mock.patch.dict(os.environ, MUSTER_RUN_DIR=str(folder / "own")):
        run_on_ranks(str(PROGRAM), 2, str(found))
    return read_json(found)


def wrong_with(run: Mapping[str, Any], reference: Mapping[str, Any]) -> Iterator[str]:
    if "problem" in run:
        yield str(run["problem"])
        return
    if far(run) > CLOSE:
        yield "losses are not those of DDP and of one process"
    rounded = [apart(one, reference["compressed"][way]) for way, one in run["compressed"].items()]
    if max(rounded) > NEAR or apart(run["exact"]["DDP"], reference["exact"]["DDP"]) > CLOSE:
        yield f"losses are not those with torch {installed('torch')}"
    if len({*run["half"]}) != 1:
        yield f"a mean of 16 bits is {run['half'][0]}, not {run['half'][1]}"
    if [apart(one, run["exact"]["all_reduce"]) < CLOSE for one in run["records"]] != [True]:
        yield "the records are not these losses"


def far(run: Mapping[str, Any]) -> float:
    """Return how far DDP and the exact modes are from one process."""
    return max(apart(one, run["one process"]) for one in run["exact"].values())


def apart(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest difference."""
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


if __name__ == "__main__":
    sys.exit(main())
