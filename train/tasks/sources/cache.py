"""Store tokens on disk, once for all ranks and runs; damaged caches are made again.

A cache is one safetensors file. It is written under another name and renamed, so that a reader sees
all of it or none, on any file system and without locks. If two processes build it at once, the
second file replaces the first, which is the same.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from muster.errors import UsageError

VERSION = "3"  # of the files' format


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
    digest = hashlib.sha256(VERSION.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def place(cache_dir: Path | None, name: str, parts: Iterable[str | bytes]) -> Path:
    """The cache's path for data that `parts` identify completely."""
    return root(cache_dir) / f"{name}-{fingerprint(parts)}.safetensors"


def is_whole(path: Path) -> bool:
    """Whether a cache exists and has the length stored in it."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def write(path: Path, sets: Mapping[str, Mapping[str, Tensor]], **facts: Any) -> None:
    """Write `sets` into `path` by their names, with `facts` about them as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    tensors = {f"{part}/{key}": one for part, own in sets.items() for key, one in own.items()}
    try:
        save_file(tensors, partial, {"facts": json.dumps({"sets": list(sets), **facts})})
        partial.chmod(0o644)  # other users of the cache may read it
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one set, mapped into memory: pages are read when they are used."""
    with safe_open(path, framework="pt") as file:
        keys = [key for key in file.keys() if key.startswith(f"{name}/")]  # noqa: SIM118
        return {key.removeprefix(f"{name}/"): file.get_tensor(key) for key in keys}


def facts(path: Path) -> dict[str, Any]:
    """The facts that were written with the sets, and the sets' names as `sets`."""
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["facts"]))
