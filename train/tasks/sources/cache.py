"""Tokens are kept on disk, once for all ranks and runs; what is damaged is made again.

A cache is one folder: a safetensors file per set and a manifest that names them. It is built
aside and renamed into place, so that a reader sees all of it or none, on any filesystem and
without locks; of two builders at once, the second finds it done.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from muster.cache_folder import cache_folder

VERSION = "2"  # of what the files hold
MANIFEST = "manifest.json"


def root(cache_dir: Path | None) -> Path:
    """Where caches are kept: as configured, or the user's cache folder."""
    return cache_folder() if cache_dir is None else cache_dir


def fingerprint(parts: Iterable[str | bytes]) -> str:
    """A name that changes with any of `parts`."""
    digest = hashlib.sha256(VERSION.encode())
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(f"\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def is_whole(folder: Path) -> bool:
    """Whether all of a cache is there, and each file as long as it says itself."""
    try:
        for name in facts(folder)["sets"]:
            with safe_open(folder / f"{name}.safetensors", framework="pt"):
                pass
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return False
    return True


def write(folder: Path, sets: Mapping[str, dict[str, Tensor]], **more: Any) -> None:
    """Make `folder` hold `sets`, and `more` facts of them, unless it is whole already."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        partial.chmod(0o755)  # others who share the cache may read it
        for name, tensors in sets.items():
            save_file(tensors, partial / f"{name}.safetensors")
            (partial / f"{name}.safetensors").chmod(0o644)
        manifest = json.dumps({"sets": list(sets), **more}, indent=2)
        (partial / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        if folder.exists() and not is_whole(folder):
            with suppress(FileNotFoundError):  # another builder was faster
                folder.rename(partial / "damaged")
        try:
            partial.rename(folder)
        except OSError:
            if not is_whole(folder):
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(folder / "damaged", ignore_errors=True)


def read(folder: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one set, mapped into memory: pages are read as they are used."""
    with safe_open(folder / f"{name}.safetensors", framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)


def facts(folder: Path) -> dict[str, Any]:
    """What was written next to the sets."""
    return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
