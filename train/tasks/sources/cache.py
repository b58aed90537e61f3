"""Tokens are kept on disk, once for all ranks and runs; what is damaged is made again.

A cache is one safetensors file. It is written under another name and renamed, so that a reader
sees all of it or none, on any filesystem and without locks; of two builders at once the second's
takes the place of the first's, which is the same.
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

VERSION = "3"  # of what the files hold


def root(cache_dir: Path | None) -> Path:
    """Where caches are kept: as configured, or `~/.cache/muster`, as XDG_CACHE_HOME says.

    Raises:
        UsageError: nothing says so, and the user has no home, as in some containers.
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
    """Where the cache is of what `parts` say, all of them."""
    return root(cache_dir) / f"{name}-{fingerprint(parts)}.safetensors"


def is_whole(path: Path) -> bool:
    """Whether a cache is there, and as long as it says itself."""
    try:
        with safe_open(path, framework="pt"):
            return True
    except (OSError, SafetensorError):
        return False


def write(path: Path, sets: Mapping[str, Mapping[str, Tensor]], **facts: Any) -> None:
    """Make `path` hold `sets` by their names, and `facts` of them, as JSON has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    os.close(handle)
    partial = Path(name)
    tensors = {f"{part}/{key}": one for part, own in sets.items() for key, one in own.items()}
    try:
        save_file(tensors, partial, {"facts": json.dumps({"sets": list(sets), **facts})})
        partial.chmod(0o644)  # others who share the cache may read it
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one set, mapped into memory: pages are read as they are used."""
    with safe_open(path, framework="pt") as file:
        keys = [key for key in file.keys() if key.startswith(f"{name}/")]  # noqa: SIM118
        return {key.removeprefix(f"{name}/"): file.get_tensor(key) for key in keys}


def facts(path: Path) -> dict[str, Any]:
    """What was written with the sets, and their names as `sets`."""
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()["facts"]))
