"""Store tokens on disk, once for all ranks and runs; damaged caches are rebuilt.

A cache is one torch file. It is written under another name and then renamed, so that a reader sees
all of it or nothing, on any file system and without locks. If two processes build it at the same
time, the second file replaces the first, which has the same content.
"""

import hashlib
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from muster.errors import UsageError
from muster.writing import CannotWrite, write_text

VERSION = "4"  # of the files' format
SETTLED_S = 3.0  # longer than a tick of a file system's clock, and than clocks are apart


def root(cache_dir: Path | None) -> Path:
    """The folder of caches: the setting's, or `muster` in XDG_CACHE_HOME or in ~/.cache.

    Raises:
        UsageError: none is set, and the user has no home, as in some containers.
    """
    if cache_dir is not None:
        return cache_dir
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"
    except RuntimeError:
        raise UsageError(
            "HOME is not set and this user has no home folder, so nothing can be cached for "
            "later runs"
            "\ntip: set HOME or XDG_CACHE_HOME to a writable folder"
        ) from None


def fingerprint(parts: Iterable[str | bytes]) -> str:
    """A name that changes with any of `parts`."""
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:16]


def path_for(cache_dir: Path | None, name: str, parts: Iterable[str | bytes]) -> Path:
    """The cache's path for data that `parts` identify completely."""
    return root(cache_dir) / f"{name}-{fingerprint(parts)}.pt"


def sum_of(cache_dir: Path | None, path: Path) -> bytes:
    """The SHA-256 of a data file; an unchanged file is read only once for all ranks.

    Files that have just been written are always read: they may change within one tick of a clock.
    """
    status = path.stat()
    times = (status.st_mtime_ns, status.st_ctime_ns)  # nobody can set the latter back
    parts = [str(path.absolute()), *map(str, (status.st_size, status.st_ino, *times))]
    stored = root(cache_dir) / "sums" / fingerprint(parts)
    with suppress(OSError, ValueError):
        digest = bytes.fromhex(stored.read_text(encoding="ascii"))
        if len(digest) == hashlib.sha256().digest_size:
            return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    if time.time() - max(times) / 1e9 > SETTLED_S:
        with suppress(CannotWrite):  # then the file is read again next time
            write_text(stored, digest.hex())
    return digest


def is_whole(path: Path) -> bool:
    """Whether a cache exists, and torch can open it, for which it needs the end of the file."""
    try:
        read(path)
    except (OSError, RuntimeError, pickle.UnpicklingError):
        return False
    return True


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content`, tensors and plain values, to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as folder:
        partial = Path(folder, path.name)
        torch.save(content, partial)
        partial.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Read the content with its tensors mapped into memory: pages are read when they are used."""
    return dict(torch.load(path, mmap=True, weights_only=True))
