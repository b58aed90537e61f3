"""Which modules a program had imported in its last run: one file per program and Python.

`$XDG_STATE_HOME/muster/imports/NAME.json`, on each node: {"modules": [...], "left_out": {...}}.
Written by local rank 0 while the program runs, and at its end; only names of what is installed,
never of the program's own modules, which may be others by the next run.

This file is loaded into workers by its path. It needs the standard library alone, of Python 3.8 or
newer.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Any


def file_of(program: str) -> Path:
    """Where the modules of `program`, a plain name, are kept for this Python."""
    state = os.environ.get("XDG_STATE_HOME", "")
    if not state:
        try:
            state = str(Path.home() / ".local" / "state")
        except RuntimeError:  # no home, as in some containers: a folder that is never there
            state = os.devnull
    digest = hashlib.sha256(sys.executable.encode()).hexdigest()[:8]
    return Path(state, "muster", "imports", f"{program}-{digest}.json")


class ImportedModules:
    """What is known of a program's imports; a file that cannot be read or written holds none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found: Any = {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text(encoding="utf-8"))
        found = found if isinstance(found, dict) else {}
        self.names: list[str] = list(found.get("modules", ()))
        self.left_out: dict[str, str] = dict(found.get("left_out", {}))  # and why
        self._counted = 0
        self._owner = 0

    def begin(self, inspection: Any) -> None:
        """Keep the list up to date from now on: as the worker's inspection wakes, and at the end.

        Both, since a program may end itself by `os._exit`, and may also be over within a second.
        """
        self._owner = os.getpid()
        inspector = getattr(inspection, "inspector", None)
        if inspector is not None:
            inspector.on_wake = self.update
        atexit.register(self.update)

    def update(self) -> None:
        """Write the list if there is something new; takes some milliseconds then."""
        count = len(sys.modules)
        if count == self._counted or os.getpid() != self._owner:
            return
        self._counted = count
        names = installed()
        if names != self.names:
            self.names = names
            self.write()

    def write(self) -> None:
        """Replace the file, so that a reader sees all of it or none."""
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        text = json.dumps({"modules": self.names, "left_out": self.left_out})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(self.path)
        except OSError:  # the next run imports as others do
            return


def installed() -> list[str]:
    """The names of the imported modules of the standard library and of packages, in their order."""
    folders = places()
    found = []
    for name, module in list(sys.modules.items()):
        # not by getattr: a module may do something of its own for a name that it lacks
        spec = getattr(module, "__dict__", {}).get("__spec__")
        origin = getattr(spec, "origin", None)
        if spec is None or spec.name != name or not isinstance(origin, str):
            continue
        if origin.startswith(folders):
            found.append(name)
    return found


def places() -> tuple[str, ...]:
    """The folders of the standard library and of installed packages."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += site.getsitepackages() if hasattr(site, "getsitepackages") else []
    found.append(site.getusersitepackages())
    return tuple({str(path) + os.sep for path in found})
