"""Write files for tests: several in one go, programs to be started, and installed packages."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files below `folder`, by path: text, bytes, or any other value as JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def executable(path: Path, text: str) -> Path:
    """Write an executable program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def package(folder: Path, name: str, entry_points: str) -> Path:
    """Install a package of this name in `folder` that has nothing but entry points."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    about = {"METADATA": metadata, "entry_points.txt": entry_points}
    return write(folder / f"{name}-1.0.dist-info", about)
