"""Tokens are kept on disk, once for all ranks and runs; what is damaged is made again.

A cache is one folder: a safetensors file per set and a manifest with their checksums. It is built
aside and renamed into place, so that a reader sees all of it or none, on any filesystem and
without locks; of two builders at once, the second finds it done.
"""

import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from muster.cache_folder import cache_folder

VERSION = "1"  # of what the files hold
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
    """Whether all of a cache is there, to the last byte."""
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["crc32"]
        return all(_crc32(folder / name) == crc32 for name, crc32 in sums.items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def write(folder: Path, sets: Mapping[str, dict[str, Tensor]], facts: Mapping[str, Any]) -> None:
    """Make `folder` hold `sets` and `facts`, unless it is whole already."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        partial.chmod(0o755)  # others who share the cache may read it
        for name, tensors in sets.items():
            save_file(tensors, partial / f"{name}.safetensors")
            (partial / f"{name}.safetensors").chmod(0o644)
        sums = {path.name: _crc32(path) for path in partial.iterdir()}
        manifest = json.dumps({**facts, "crc32": sums}, indent=2)
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


def _crc32(path: Path) -> int:
    crc32 = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc32 = zlib.crc32(chunk, crc32)
    return crc32
