"""Store tokens on disk, once for all ranks and runs; damaged caches are made again.

A cache is one file of torch. It is written under another name and renamed, so that a reader sees
all of it or none, on any file system and without locks. If two processes build it at once, the
second file replaces the first, which holds the same.
"""

import hashlib
import os
import pickle
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from muster.errors import UsageError

VERSION = "4"  # of the files' format


def root(cache_dir: Path | None) -> Path:
    """The folder of caches: the setting's, or `~/.cache/muster`, or below XDG_CACHE_HOME.

    Raises:
        UsageError: none is set, and the user has no home, as in some containers.
    """
    if cache_dir is not None:
        return cache_dir
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"
    except RuntimeError:
        raise UsageError(
            "HOME is not set, and this user has no home folder: nothing can be kept for later "
            "runs; set HOME, or XDG_CACHE_HOME to a folder that can be written"
        ) from None


def fingerprint(parts: Iterable[str | bytes]) -> str:
    """A name that changes with any of `parts`."""
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:16]


def place(cache_dir: Path | None, name: str, parts: Iterable[str | bytes]) -> Path:
    """The cache's path for data that `parts` identify completely."""
    return root(cache_dir) / f"{name}-{fingerprint(parts)}.pt"


def is_whole(path: Path) -> bool:
    """Whether a cache exists, and torch finds its end."""
    try:
        read(path)
    except (OSError, RuntimeError, pickle.UnpicklingError):
        return False
    return True


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content`, of tensors and plain values, into `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        partial = Path(folder, path.name)
        torch.save(content, partial)
        partial.replace(path)


def read(path: Path) -> dict[str, Any]:
    """The content, its tensors mapped into memory: pages are read when they are used."""
    return dict(torch.load(path, mmap=True, weights_only=True))
