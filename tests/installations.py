"""Muster as people install it: built from the tracked files, in an environment of its own.

There is no network: the build uses the setuptools of the tests' own environment.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from muster.checkout import CHECKOUT
from tests.environments import environment, requirements
from tests.required import need
from tests.written import write

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-build-isolation", "--no-deps")
# Files that an earlier version's build, Python and other tools leave in a clone.
LEFT_BEHIND = {
    "build/lib/muster/_checkout/launch/launchers/removed.py": "",
    "build/lib/muster/removed.py": "",
    "launch/launchers/__pycache__/slurm.cpython-311.pyc": "",
    "muster.egg-info/SOURCES.txt": "launch/launchers/removed.py\n",
}


@dataclass(frozen=True)
class Installation:
    """An environment with Muster and the packages that it requires."""

    python: Path

    @property
    def muster(self) -> Path:
        """The path of its `muster` command."""
        return self.python.with_name("muster")

    def files(self) -> dict[Path, int]:
        """Return all files but those that Python itself writes, with their modification times."""
        paths = (path for path in self.python.parents[1].rglob("*") if path.suffix != ".pyc")
        return {path: path.lstat().st_mtime_ns for path in paths if path.is_file()}


def tracked() -> list[str]:
    """Return the files of the working tree that git tracks, except for removed ones."""
    need("git")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    ).stdout
    return [name for name in listed.split("\0") if name and (CHECKOUT / name).exists()]


def clone(folder: Path) -> Path:
    """Copy the tracked files to `folder`, without git's history."""
    for name in tracked():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, target)
    return folder


def wheel(folder: Path) -> Path:
    """Build a wheel in `folder`, from a clone with extra files that the wheel must not contain."""
    source = write(clone(folder / "clone"), LEFT_BEHIND)
    _pip("wheel", *OFFLINE, "--wheel-dir", str(folder), str(source))
    (made,) = folder.glob("*.whl")
    return made


def install(folder: Path, *what: str) -> Installation:
    """Make an environment in `folder` and install `what` into it with pip."""
    python = environment(folder, *requirements(), "setuptools")  # for the build
    _pip("--python", str(python), "install", "--no-compile", *OFFLINE, *what)
    return Installation(python)


def _pip(*words: str) -> None:
    done = subprocess.run([*PIP, *words], capture_output=True, text=True, env=_without_settings())
    assert done.returncode == 0, done.stderr


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
