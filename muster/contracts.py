"""The classes and functions from which other packages make sync modes and compressors.

    from muster.contracts import BucketHook

A worker may be Muster's trainer, which has `train`, or a user's program, which may have its own
`train`; there Muster's modules have other names. The names here work in both.
"""

import sys
from importlib import import_module
from typing import Any

_MODULES = {
    "AfterBackward": "train.sync.after_backward",
    "BucketHook": "train.sync.ddp.hooks",
    "Cast": "train.sync.compression.base",
    "DdpSync": "train.sync.ddp.torch_ddp",
    "GradSync": "train.sync.base",
    "Ranks": "train.sync.ranks",
    "SyncOptions": "train.sync.base",
    "flatten": "train.sync.ranks",
    "unflatten": "train.sync.ranks",
    "summed": "train.sync.ddp.hooks",
}
__all__ = [*_MODULES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'muster.contracts' has no attribute {name!r}")
    return getattr(import_module(full_name(_MODULES[name])), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__"])


def full_name(module: str) -> str:
    """The full name of one of our modules; in our trainer, the name under which it is loaded."""
    is_own = getattr(sys.modules.get("train"), "IS_MUSTER", False)
    return f"muster._{module}" if module.startswith("train.") and not is_own else module
