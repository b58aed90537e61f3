"""Folders of plug-ins: a file's name is a flag's value, and its `build` makes the plug-in.

`base.py` is the contract of all plug-ins in the folder, and not a value. A file of `FAMILIES`
defines several plug-ins that differ little; its name is not a value either.

Other packages add plug-ins through entry points in the folder's group (muster/entry_points.py). A
file in the folder takes precedence over an entry point of the same name.
"""

import importlib
from typing import Any

from muster import entry_points
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from muster.terminal import TIP

CONTRACT = "base"
FAMILIES = {
    "train.tasks": {
        "glue": ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"),
    },
}
GROUPS = {
    "launch.launchers": entry_points.LAUNCHERS,
    "launch.starters": entry_points.STARTERS,
    "train.sync.modes": entry_points.MODES,
    "train.sync.compression": entry_points.COMPRESSORS,
    "train.tasks": entry_points.TASKS,
}
WORKERS_PLUGINS = ("train.sync.modes", "train.sync.compression", "train.tasks")  # of their Python


def names(package: str) -> list[str]:
    """The plug-ins of `package` ("train.tasks"): its files, and what other packages add to it.

    None of them is imported.
    """
    added = entry_points.names(GROUPS[package]) if package in GROUPS else []
    return sorted({*own_names(package), *added})


def is_known(package: str, name: str) -> bool:
    """Whether there is such a plug-in; other packages are searched only if no file has the name."""
    return name in own_names(package) or name in names(package)


def own_names(package: str) -> list[str]:
    """The plug-ins that are files of this checkout."""
    folder = CHECKOUT.joinpath(*package.split("."))
    stems = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
    families = FAMILIES.get(package, {})
    return sorted((stems - {CONTRACT, *families}).union(*families.values()))


def load(package: str, name: str) -> Any:
    """The `build` of one plug-in.

    Raises:
        UsageError: no such plug-in; the message lists the existing ones.
    """
    if name in own_names(package):
        return importlib.import_module(f"{package}.{file_of(package, name)}").build
    build = entry_points.load(GROUPS[package], name) if package in GROUPS else None
    if build is None:
        raise UsageError(f"{package}: unknown {name!r}{TIP}choose from {', '.join(names(package))}")
    return build


def file_of(package: str, name: str) -> str:
    """The name of the file, in the folder of `package`, that defines a plug-in."""
    families = FAMILIES.get(package, {})
    return next((family for family, members in families.items() if name in members), name)
