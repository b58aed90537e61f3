"""Import modules before the workers are forked, and refuse those that prevent a fork.

A forked process has a single thread and no GPU state. If a module starts a thread, a process
or CUDA during its import, the forked workers lack it. If a module reads the worker's rank during
its import, all workers get the same one; such modules are known by name. A module that the
program's own folder hides must not be imported from elsewhere.

This file is loaded by its path. It needs only the standard library of Python 3.8 or newer.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path

# These settings keep libraries from starting threads when they are loaded, and torch from starting
# CUDA when it is only asked whether there is a GPU.
WHILE_IMPORTING = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
# These modules read RANK during their import, but it is set after the fork.
READ_RANK = frozenset("lightning lightning_fabric lightning_utilities pytorch_lightning".split())


class Unforkable(Exception):
    """A module that cannot be imported in advance, and why."""


def import_all(names: Iterable[str], folder: str) -> dict[str, str]:
    """Import `names`; return the failed ones with their errors, which the program will see itself.

    `folder` is first on the program's path; modules in it hide installed ones.

    Raises:
        Unforkable: a module must not be imported here; this process cannot be used any more.
    """
    failed = {}
    count = len(tasks())
    with _apart_from_the_program():
        for name in names:
            package = name.partition(".")[0]
            if package in READ_RANK:
                raise Unforkable(f"--preload {name}: {package} reads RANK while it is imported")
            before = frozenset(sys.modules)
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 (a module may even end Python)
                failed[name] = traceback.format_exception_only(type(error), error)[-1].strip()
            if problem := _problem(folder, before, count):
                raise Unforkable(f"--preload {name}: {package} {problem}")
    return failed


@contextmanager
def _apart_from_the_program() -> Iterator[None]:
    """A context in which neither this folder nor the program's is on the path."""
    saved = {name: os.environ.get(name) for name in WHILE_IMPORTING}
    path = sys.path[:]
    os.environ.update(WHILE_IMPORTING)
    hidden = (Path(__file__).resolve().parent, Path.cwd())
    sys.path[:] = [entry for entry in path if entry and Path(entry).resolve() not in hidden]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, value in saved.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _problem(folder: str, before: frozenset[str], count: int) -> str:
    """Why an import makes a fork impossible, or ""; `before`: the modules loaded before it."""
    if len(names := tasks()) > count:
        return f"leaves a thread or process running ({', '.join(names[1:])})"
    if uses_cuda():
        return "starts CUDA while it is imported"
    new = {name.partition(".")[0] for name in sys.modules.keys() - before}
    for name in sorted(new - {module.partition(".")[0] for module in before}):
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.loader is not None:  # not a folder that only has this name
            return f"imports {name}, but the program's folder has a module with that name"
    return ""


def tasks() -> list[str]:
    """The names of this process's threads and children, its main thread first."""
    names = []
    with suppress(OSError):
        for thread in sorted(map(int, os.listdir("/proc/self/task"))):  # noqa: PTH208 (as numbers)
            folder = Path(f"/proc/self/task/{thread}")
            names.append((folder / "comm").read_text().strip())
            names += (folder / "children").read_text().split()
    return names


def uses_cuda() -> bool:
    """Whether the CUDA driver was started in this process."""
    with suppress(OSError):
        paths = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
        return any(path.startswith("/dev/nvidia-uvm") for path in paths)
    return False


def reseed() -> None:
    """Give this worker its own random numbers after the fork, as Python does for `random`.

    torch chooses its CPU seed during its import, and a GPU's at the first use, which is in the
    worker.
    """
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
