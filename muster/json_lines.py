"""Lines of JSON, one object each, of a file that another process may still write to."""

import json
from pathlib import Path
from typing import Any

TAIL_BYTES = 65_536  # has the last steps of a rank, however long its file is


def objects(data: bytes) -> list[dict[str, Any]]:
    """Those in `data`; a line that is cut off at either end, or broken, is left out."""
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
    """The objects of `count` bytes from `start` on; all that follow, if it is negative.

    Raises:
        OSError: there is no such file.
    """
    with path.open("rb") as file:
        file.seek(max(start, 0))
        return objects(file.read(count))


def last(path: Path) -> list[dict[str, Any]]:
    """The objects in the last `TAIL_BYTES`; none where there is no such file."""
    try:
        return read(path, path.stat().st_size - TAIL_BYTES)
    except OSError:  # put aside as we look
        return []
