"""Import modules before the workers are forked, and find those with which that cannot be done.

A fork has one thread alone, and none of a GPU's state: a module that starts a thread, a process or
CUDA as it is imported would leave its users without it. One that reads, as it is imported, which
worker it is in would take all workers for one: those that do are known by name. And what the
program's own folder hides must not be found elsewhere.

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

# What keeps libraries from starting threads as they are loaded, and torch from starting CUDA where
# it is only asked whether there is a GPU.
WHILE_IMPORTING = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
OPENBLAS_SIZES = [f"{one}_NUM_THREADS" for one in ("OPENBLAS", "OPENBLAS_DEFAULT", "GOTO", "OMP")]
OPENBLAS_SETTERS = [
    f"{prefix}openblas_set_num_threads{suffix}"
    for prefix in ("", "scipy_")
    for suffix in ("", "64_", "_64")
]
# These read RANK as they are imported, which is set after the fork.
READ_RANK = frozenset("lightning lightning_fabric lightning_utilities pytorch_lightning".split())


class Unforkable(Exception):
    """A module that cannot be imported in advance: its package, and what it does."""

    def __init__(self, package: str, what: str) -> None:
        super().__init__(f"{package} {what}")
        self.package, self.what = package, what


class AdvanceImport:
    """Imports, one after another, into a process that will be forked.

    `folder` is the first on the program's path; what lies there hides what is installed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._before = frozenset(sys.modules)
        self._seen = len(sys.modules)
        self._tasks = len(tasks())

    def run(self, names: Iterable[str]) -> dict[str, str]:
        """Import `names`; those that failed, with their error: the program will meet it itself.

        Raises:
            Unforkable: a module must not be imported here; this process is of no use any more.
        """
        saved = {name: os.environ.get(name) for name in WHILE_IMPORTING}
        path = sys.path[:]
        os.environ.update(WHILE_IMPORTING)
        # neither this folder, nor what is the program's
        hidden = (Path(__file__).resolve().parent, Path.cwd())
        sys.path[:] = [one for one in path if one and Path(one).resolve() not in hidden]
        failed = {}
        try:
            for name in names:
                if name.partition(".")[0] in READ_RANK:
                    raise Unforkable(name.partition(".")[0], "reads RANK as it is imported")
                try:
                    importlib.import_module(name)
                except BaseException as error:  # noqa: BLE001 (a module may even end Python)
                    failed[name] = traceback.format_exception_only(type(error), error)[-1].strip()
                self._check(name.partition(".")[0])
        finally:
            sys.path[:] = path
            for name, value in saved.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        return failed

    def _check(self, package: str) -> None:
        if len(sys.modules) == self._seen:
            return
        new, self._seen = list(sys.modules)[self._seen :], len(sys.modules)
        here = tasks()
        if len(here) > self._tasks:
            raise Unforkable(package, f"leaves a thread or process ({', '.join(here[1:])})")
        if uses_cuda():
            raise Unforkable(package, "starts CUDA as it is imported")
        for name in sorted({one.partition(".")[0] for one in new} - self._before):
            found = PathFinder.find_spec(name, [self._folder])
            if found is not None and found.loader is not None:  # no folder that only has its name
                raise Unforkable(package, f"imports {name}, which the program's folder has, too")


def tasks() -> list[str]:
    """The names of this process's threads and children, its main thread first."""
    found = []
    with suppress(OSError):
        for thread in sorted(map(int, os.listdir("/proc/self/task"))):  # noqa: PTH208 (as numbers)
            folder = Path(f"/proc/self/task/{thread}")
            found.append((folder / "comm").read_text().strip())
            found += (folder / "children").read_text().split()
    return found


def uses_cuda() -> bool:
    """Whether the driver was started in this process."""
    with suppress(OSError):
        paths = [str(one.resolve()) for one in Path("/proc/self/fd").iterdir()]
        return any(one.startswith("/dev/nvidia-uvm") for one in paths)
    return False


def restore_openblas() -> None:
    """After the fork: as many threads for each OpenBLAS as it would have had."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    set_sizes = [os.environ.get(name, "") for name in OPENBLAS_SIZES]
    count = next((int(one) for one in set_sizes if one.isdigit() and int(one)), cores or 1)
    if count == 1:
        return
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if "openblas" in line}
        for path in paths:
            library = ctypes.CDLL(path)
            for name in [one for one in OPENBLAS_SETTERS if hasattr(library, one)][:1]:
                getattr(library, name)(ctypes.c_int(count))


def reseed() -> None:
    """After the fork: random numbers of this worker's own, as Python's are anyway.

    torch draws its CPU's seed as it is imported, and a GPU's as that is first used: in the worker.
    """
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
