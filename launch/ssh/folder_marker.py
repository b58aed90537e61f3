"""Whether a folder of a node may hold the checkout: a new one, an empty one, or one marked as ours.

Its text is sent to `python3` there, before anything of ours is; so it needs the standard library
of Python 3.6 alone. It prints one line of JSON.
"""

import json
import sys
import time
from pathlib import Path

MARK = "muster:"
# Sending the code overwrites and deletes files: it goes into folders with this file only, whose
# text tells nodes that share a folder from nodes that have one each.
MARKER = ".muster-sent"
# An environment may be made before the code comes, and a disk of its own has the other.
HARMLESS = (".venv", "lost+found")
FILLED_S = 1.0  # another node may have made the marker this moment, and be about to write into it


def claim(folder, identity):  # type: ignore[no-untyped-def]
    """The folder's identity, which is `identity` if it had none; or what stands against it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(path.name for path in folder.iterdir() if path.name not in HARMLESS)
        if foreign and MARKER not in foreign:
            return {"foreign": foreign}
        return {"identity": _identity(folder / MARKER, identity)}
    except OSError as error:
        return {"failed": error.strerror or str(error)}


def _identity(marker, identity):  # type: ignore[no-untyped-def]
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        deadline = time.time() + FILLED_S
        while time.time() < deadline:
            found = marker.read_text().strip()
            if found:
                return found
            time.sleep(0.05)
    marker.write_text(identity + "\n")
    return identity


if __name__ == "__main__":
    print(MARK + json.dumps(claim(Path(sys.argv[1]), sys.argv[2])))
