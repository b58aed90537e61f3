"""Sync modes and compressors by name: files of this package, and plug-ins of other packages."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from muster import entry_points
from muster.errors import UsageError

from .after_backward import AfterBackward
from .base import GradSync, SyncOptions
from .ranks import Ranks

GROUPS = {"modes": entry_points.MODES, "compression": entry_points.COMPRESSORS}


def build(mode: str, ranks: Ranks, options: SyncOptions) -> GradSync:
    """Build the sync mode `mode`; with a single process it has nothing to synchronise.

    Raises:
        UsageError: there is no such mode; the message lists all.
    """
    kind: type[GradSync] = load_plugin("modes", mode)
    if ranks.world_size == 1:
        kind = GradSync
    elif hasattr(kind, "average") and not (options.overlap and options.bucket_mb != 0):
        loop = AfterBackward(ranks, options)
        loop.average = kind.average
        return loop
    return kind(ranks, options)


def load_plugin(folder: Literal["modes", "compression"], name: str) -> Any:
    """Return the `build` of a plug-in, under whatever name this package was imported.

    Raises:
        UsageError: there is no such plug-in; the message lists all.
    """
    if name in own_plugins(folder):  # it takes precedence over an entry point of the same name
        return import_module(f".{folder}.{name}", __package__).build
    build = entry_points.load(GROUPS[folder], name)
    if build is None:
        known = ", ".join(plugin_names(folder))
        hint = entry_points.unknown(GROUPS[folder], name, known)
        raise UsageError(f"sync/{folder}: unknown {name!r}{hint}")
    return build


def plugin_names(folder: Literal["modes", "compression"]) -> list[str]:
    """Return the names of this package's plug-ins, and of plug-ins that other packages add."""
    return sorted({*own_plugins(folder), *entry_points.names(GROUPS[folder])})


def own_plugins(folder: str) -> list[str]:
    """Return the names of the plug-ins that are files of this package."""
    files = Path(__file__).with_name(folder).glob("[!_]*.py")
    return [file.stem for file in files if file.stem != "base"]
