"""Make environments with only some of the installed distributions and their requirements.

    python = environment(tmp_path / "env", *requirements())           # the base's packages
    python = environment(tmp_path / "env", "rich", "psutil")          # only these
    install_checkout(python)                                          # and Muster, editable

Nothing is downloaded: their files are symbolic links into the tests' own environment. They have no
pip; to install a wheel, use another environment's: `pip --python PYTHON install --no-deps`.
"""

import configparser
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from muster.checkout import CHECKOUT
from tests.written import executable

COMMAND = """#!{python}
from muster.command import main

main()
"""


def requirements(*extras: str) -> list[str]:
    """Return Muster's requirements from setup.cfg, including those of these extras."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg", encoding="utf-8")
    options = [setup["options"]["install_requires"]]
    options += [setup["options.extras_require"][extra] for extra in extras]
    return [line for text in options for line in text.split("\n") if line]


def environment(folder: Path, *distributions: str) -> Path:
    """Make an environment in `folder` with only these distributions; return its Python.

    A distribution is given as in a requirements file: `name` or `name[extra]`.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    packages = packages_of(folder / "bin" / "python")
    for name in closure(distributions):
        installed = distribution(name)
        root = Path(str(installed.locate_file("")))
        entries = {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}
        for entry in entries:
            if not (packages / entry).exists():  # such as `google`, which several share
                (packages / entry).symlink_to(root / entry)
    return folder / "bin" / "python"


def python_path(folder: Path, *modules: Path) -> Path:
    """Make an environment in `folder` that finds its modules in these folders; return its Python.

    Their .pth files are not read, so editable installations in them are not found.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    (packages_of(python) / "folders.pth").write_text("".join(f"{one}\n" for one in modules))
    return python


def paced_python(folder: Path, *modules: Path) -> Path:
    """Make an environment with the task `paced`, whose steps take time but no processor time."""
    return python_path(folder, *modules, CHECKOUT / "tests" / "paced", CHECKOUT, own_packages())


def own_packages() -> Path:
    """Return the folder of this Python's packages."""
    return Path(sysconfig.get_paths()["purelib"])


def install_checkout(python: Path) -> Path:
    """Give an environment this checkout, as `pip install --editable` does; return its `muster`."""
    (packages_of(python) / "muster").symlink_to(CHECKOUT / "muster")
    return executable(python.parent / "muster", COMMAND.format(python=python))


def packages_of(python: Path) -> Path:
    """The folder of an environment's packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return python.parents[1] / "lib" / version / "site-packages"


def closure(distributions: tuple[str, ...]) -> set[str]:
    """Return the names of the distributions and of everything that they require here."""
    waiting = [Requirement(text) for text in distributions]
    known: set[tuple[str, str]] = set()
    while waiting:
        needed = waiting.pop()
        for extra in ("", *needed.extras):
            item = (str(canonicalize_name(needed.name)), extra)
            if item not in known:
                known.add(item)
                waiting += _required_by(*item)
    return {name for name, _ in known}


def _required_by(name: str, extra: str) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            yield needed
