"""Whether a folder of a node may hold the checkout: a new one, an empty one, or one marked as ours.

Its text is sent to `python3` there, before anything of ours is; so it needs the standard library
of Python 3.6 alone. It prints one line of JSON.
"""

import json
import os
import sys
import time

MARK = "muster:"
# Sending the code overwrites and deletes files: it goes into folders with this file only, whose
# text tells nodes that share a folder from nodes that have one each.
MARKER = ".muster-sent"
# An environment may be made before the code comes, and a disk of its own has the other.
HARMLESS = (".venv", "lost+found")
FILLED_S = 1.0  # another node may have made the marker this moment, and be about to write into it


def claim(folder, identity):  # type: ignore[no-untyped-def]
    """The folder's identity, which is `identity` if it had none; or what stands against it."""
    path = os.path.join(folder, MARKER)
    try:
        os.makedirs(folder, exist_ok=True)
        names = os.listdir(folder)
        foreign = sorted(name for name in names if name not in HARMLESS)
        if foreign and MARKER not in foreign:
            return {"foreign": foreign}
        return {"identity": _identity(path, identity)}
    except OSError as error:
        return {"failed": error.strerror or str(error)}


def _identity(path, identity):  # type: ignore[no-untyped-def]
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        deadline = time.time() + FILLED_S
        while time.time() < deadline:
            with open(path) as marker:
                found = marker.read().strip()
            if found:
                return found
            time.sleep(0.05)
    with open(path, "w") as marker:
        marker.write(identity + "\n")
    return identity


if __name__ == "__main__":
    print(MARK + json.dumps(claim(sys.argv[1], sys.argv[2])))
