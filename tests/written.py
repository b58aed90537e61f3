"""Files that tests write: several in one go, with their folders; and programs to be started."""

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
