"""Lines of JSON, one object each, in a file that another process may still be writing."""

import json
from pathlib import Path
from typing import Any

TAIL_BYTES = 65_536  # holds a rank's last steps, however long the file is


def objects(data: bytes) -> list[dict[str, Any]]:
    """The objects in `data`; a line that is cut off at an end, or invalid, is left out."""
    found = []
    for line in data.split(b"\n"):
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def read(path: Path, start: int = 0, count: int = -1) -> list[dict[str, Any]]:
    """The objects in `count` bytes from `start` on; in all that follow if `count` is negative.

    Raises:
        OSError: there is no such file.
    """
    with path.open("rb") as file:
        file.seek(max(start, 0))
        return objects(file.read(count))


def last(path: Path) -> list[dict[str, Any]]:
    """The objects in the last `TAIL_BYTES`; none if there is no such file."""
    try:
        return read(path, path.stat().st_size - TAIL_BYTES)
    except OSError:  # the file was moved in the meantime
        return []
