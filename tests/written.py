"""What tests write: several files in one go, programs to be started, and installed packages."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files below `folder`, each by its path: text, bytes, or else a value as JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def executable(path: Path, text: str) -> Path:
    """Write a program that can be called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def package(folder: Path, name: str, entry_points: str) -> Path:
    """Have a package of this name installed in `folder`, which has no more than entry points."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    about = {"METADATA": metadata, "entry_points.txt": entry_points}
    return write(folder / f"{name}-1.0.dist-info", about)
