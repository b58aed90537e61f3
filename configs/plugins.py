"""Folders of plug-ins: a file's name is a flag's value, and its `build` makes the plug-in.

`base.py` is the contract of all plug-ins in the folder, and not a value. A file of `FAMILIES`
defines several plug-ins that differ little; its name is not a value either.
"""

import importlib
from pathlib import Path
from typing import Any

from muster.errors import UsageError

REPOSITORY = Path(__file__).resolve().parent.parent

CONTRACT = "base"
FAMILIES = {
    "train.tasks": {
        "glue": ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli"),
    },
}


def names(package: str) -> list[str]:
    """The plug-ins of `package` ("train.tasks"), from its list of files: nothing is imported."""
    folder = REPOSITORY.joinpath(*package.split("."))
    stems = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
    families = FAMILIES.get(package, {})
    return sorted((stems - {CONTRACT, *families}).union(*families.values()))


def load(package: str, name: str) -> Any:
    """The `build` of one plug-in.

    Raises:
        UsageError: no such plug-in; the message lists the existing ones.
    """
    known = names(package)
    if name not in known:
        raise UsageError(f"{package}: unknown {name!r}; known: {', '.join(known)}")
    return importlib.import_module(f"{package}.{file_of(package, name)}").build


def file_of(package: str, name: str) -> str:
    """The name of the file, in the folder of `package`, that defines a plug-in."""
    families = FAMILIES.get(package, {})
    return next((family for family, members in families.items() if name in members), name)
