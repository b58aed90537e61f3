"""What a program imports to work well with its launcher, and to start others.

on_stop, stopping       a program that is asked to stop ends in order: see docs/own-programs.md
launch, map, job, Job   functions on many machines, from Python: see docs/python.md

Importing this needs the standard library alone, and loads no more than is used.
"""

from importlib import import_module

from muster.orderly_stop import on_stop, stopping

__all__ = ["Job", "RunFailed", "UsageError", "job", "launch", "map", "on_stop", "stopping"]

_PLACES = {
    "Job": "muster.remote_job",
    "RunFailed": "muster.errors",
    "UsageError": "muster.errors",
    "job": "muster.remote_job",
    "launch": "muster.launching",
    "map": "muster.launching",
}
_NAMES = {"map": "map_items"}  # which is not to hide Python's own


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    found: object = getattr(import_module(_PLACES[name]), _NAMES.get(name, name))
    return found
