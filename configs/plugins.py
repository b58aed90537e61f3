"""A folder of plug-ins: a file's name is a flag's value, its `build` is what the flag selects.

`base.py` is the contract that all of them fulfil, and no value. A file of `FAMILIES` is a table of
several that differ in a few words; its name is no value either.
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
    """The plug-ins of `package` ("train.tasks"), by listing its folder: nothing is imported."""
    folder = REPOSITORY.joinpath(*package.split("."))
    stems = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("_")}
    families = FAMILIES.get(package, {})
    return sorted((stems - {CONTRACT, *families}).union(*families.values()))


def load(package: str, name: str) -> Any:
    """The `build` of one plug-in.

    Raises:
        UsageError: no such plug-in; the message lists those there are.
    """
    known = names(package)
    if name not in known:
        raise UsageError(f"{package}: unknown {name!r}; known: {', '.join(known)}")
    return importlib.import_module(f"{package}.{file_of(package, name)}").build


def file_of(package: str, name: str) -> str:
    """The name of the file, in the folder of `package`, that a plug-in is in."""
    families = FAMILIES.get(package, {})
    return next((family for family, members in families.items() if name in members), name)
