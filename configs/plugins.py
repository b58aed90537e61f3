"""A folder of plug-ins: a file's name is a flag's value, its `build` is what the flag selects.

`base.py` is the contract that all of them fulfil, and no value.
"""

import importlib
from pathlib import Path
from typing import Any

from muster.errors import UsageError

REPOSITORY = Path(__file__).resolve().parent.parent

CONTRACT = "base"


def names(package: str) -> list[str]:
    """The plug-ins of `package` ("train.tasks"), by listing its folder: nothing is imported."""
    folder = REPOSITORY.joinpath(*package.split("."))
    stems = (file.stem for file in folder.glob("*.py") if not file.stem.startswith("_"))
    return sorted(stem for stem in stems if stem != CONTRACT)


def load(package: str, name: str) -> Any:
    """The `build` of one plug-in.

    Raises:
        UsageError: no such plug-in; the message lists those there are.
    """
    known = names(package)
    if name not in known:
        raise UsageError(f"{package}: unknown {name!r}; known: {', '.join(known)}")
    return importlib.import_module(f"{package}.{name}").build
