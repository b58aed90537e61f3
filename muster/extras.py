"""The packages that parts of Muster need in addition to the base, and how to install them.

The lists come from setup.cfg, which an installation from a wheel has, too.

It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import configparser
import importlib.util
import shlex
import sys
from collections.abc import Collection, Container, Iterator
from pathlib import Path

from muster.terminal import TIP
from muster.worker.process import CHECKOUT, IS_INSTALLED

BASE = ""  # in place of an extra's name: what every command needs
TRAINER = "trainer"
REPORT = "report"
USES = {BASE: "Muster", TRAINER: "Muster's own trainer", REPORT: "a report"}
# The module of a package, if its name differs.
MODULES = {
    "Jinja2": "jinja2",
    "PyYAML": "yaml",
    "pillow": "PIL",
    "python-dotenv": "dotenv",
}
OWN_FOLDER = CHECKOUT / ".venv" / "bin"  # of the environment that `make install` makes
PIPX_FILE = "pipx_metadata.json"  # in an environment that pipx has made
MOST_NAMES = 4  # of packages in a message
OPTIONAL = frozenset(("weasyprint",))  # a report without it has no PDF


def packages(extra: str) -> dict[str, str]:
    """The packages of an extra, each with the module by which it is imported.

    Empty if only the source was copied, without setup.cfg.
    """
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg", encoding="utf-8")
    section = "options.extras_require" if extra else "options"
    names = setup.get(section, extra or "install_requires", fallback="").split()
    return {name: MODULES.get(name, name) for name in names}


def problems(extra: str) -> Iterator[str]:
    """A line if this Python lacks packages of an extra, with the command to install them."""
    if missing := [*_missing(extra, OPTIONAL)]:
        yield lacking(extra, missing)


def lacking(extra: str, names: Collection[str], python: str = sys.executable) -> str:
    """One line: which packages of an extra `python` lacks, and how to install them."""
    needed = f"the extra [{extra}]" if extra else "packages"
    first_names = ", ".join([*names][:MOST_NAMES])
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    do = f"install: {install_command(extra, names, python)}"
    if python == sys.executable and _is_ready(names):
        do = _activate()
    return f"{USES[extra]} needs {needed}, but {python} has no {first_names}{more}{TIP}{do}"


def install_command(extra: str, names: Collection[str], python: str = sys.executable) -> str:
    """The command that installs packages of an extra for a Python, as its environment was made."""
    prefix = Path(python).parent.parent
    if prefix == OWN_FOLDER.parent:
        return f"make -C {shlex.quote(str(CHECKOUT))} install"
    if IS_INSTALLED or (prefix / PIPX_FILE).exists():
        return _adding(names, python)
    return _adding(["-e", f"{CHECKOUT}[{extra}]" if extra else str(CHECKOUT)], python)


def _adding(words: Collection[str], python: str) -> str:
    """The command that adds packages to a Python; `words`: their names, or -e and a folder."""
    if (Path(python).parent.parent / PIPX_FILE).exists():
        return f"pipx inject muster {shlex.join(words)}"
    if python == sys.executable and importlib.util.find_spec("pip") is None:
        return f"uv pip install --python {shlex.quote(python)} {shlex.join(words)}"
    return f"{shlex.quote(python)} -m pip install --use-pep517 {shlex.join(words)}"


def without_tracker(name: str, python: str = sys.executable) -> str:
    """The end of a line about a metrics tracker whose package `python` lacks."""
    return f"{python} has no {name}{TIP}install: {_adding([name], python)}"


def without_base(module: str) -> str:
    """One line about `module`, which belongs to a base package that this Python lacks."""
    if (OWN_FOLDER / "activate").exists() and Path(sys.executable).parent != OWN_FOLDER:
        return f"{sys.executable} has no {module}{TIP}{_activate()}"
    return lacking(BASE, [*_missing(BASE)])


def _is_ready(names: Collection[str]) -> bool:
    """Whether there is an environment of `make install`, and it has these packages."""
    modules = [MODULES.get(name, name) for name in names]
    folders = OWN_FOLDER.parent.glob("lib/python3*/site-packages")
    return (OWN_FOLDER / "activate").exists() and any(
        all((folder / module).is_dir() for module in modules) for folder in folders
    )


def _activate() -> str:
    return f"activate Muster's environment: source {shlex.quote(str(OWN_FOLDER / 'activate'))}"


def explained(error: ModuleNotFoundError) -> str | None:
    """One line if an import failed because a package that Muster needs is missing; else None."""
    module = (error.name or "").partition(".")[0]
    for extra in USES:
        modules = packages(extra)
        missing = [*_missing(extra)]
        if module in (modules[name] for name in missing):
            return lacking(extra, missing) if extra else without_base(module)
    return None


def _missing(extra: str, without: Container[str] = ()) -> Iterator[str]:
    for name, module in packages(extra).items():
        if name not in without and importlib.util.find_spec(module) is None:
            yield name


if __name__ == "__main__":  # tells scripts whether this Python can start runs
    sys.exit(any(_missing(BASE)))
