"""Import modules before the workers are forked, and find those with which that cannot be done.

A fork has one thread alone, and none of a GPU's state: a module that starts a thread, a process or
CUDA as it is imported would leave its users without it. One that reads, as it is imported, which
worker it is in would take all workers for one: those that do are known by name. And what the
program's own folder hides must not be found elsewhere.

This file is loaded by its path. It needs the standard library alone, of Python 3.8 or newer.
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

# What keeps libraries from starting threads as they are loaded, and torch from starting CUDA where
# it is only asked whether there is a GPU.
WHILE_IMPORTING = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
# These read RANK as they are imported, which is set after the fork.
READ_RANK = frozenset("lightning lightning_fabric lightning_utilities pytorch_lightning".split())


class Unforkable(Exception):
    """A module that cannot be imported in advance, and why."""


def import_all(names: Iterable[str], folder: str) -> dict[str, str]:
    """Import `names`; those that failed, with their error: the program will meet it itself.

    `folder` is the first on the program's path; what lies there hides what is installed.

    Raises:
        Unforkable: a module must not be imported here; this process is of no use any more.
    """
    failed, count = {}, len(tasks())
    with _apart_from_the_program():
        for name in names:
            package = name.partition(".")[0]
            if package in READ_RANK:
                raise Unforkable(f"--preload {name}: {package} reads RANK as it is imported")
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
    """Inside it neither this folder nor what is the program's is on the path."""
    saved = {name: os.environ.get(name) for name in WHILE_IMPORTING}
    path = sys.path[:]
    os.environ.update(WHILE_IMPORTING)
    hidden = (Path(__file__).resolve().parent, Path.cwd())
    sys.path[:] = [one for one in path if one and Path(one).resolve() not in hidden]
    try:
        yield
    finally:
        sys.path[:] = path
        for name, value in saved.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _problem(folder: str, before: frozenset[str], count: int) -> str:
    """What a module has done that must not be, with those that it has loaded; or ""."""
    if len(here := tasks()) > count:
        return f"leaves a thread or process ({', '.join(here[1:])})"
    if uses_cuda():
        return "starts CUDA as it is imported"
    new = {name.partition(".")[0] for name in sys.modules.keys() - before}
    for name in sorted(new - {one.partition(".")[0] for one in before}):
        found = PathFinder.find_spec(name, [folder])
        if found is not None and found.loader is not None:  # no folder that only has its name
            return f"imports {name}, which the program's folder has, too"
    return ""


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
