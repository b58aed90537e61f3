"""Containers for tests of `--container`: charliecloud itself, and a stand-in for apptainer."""

import sys
from collections.abc import Iterable
from pathlib import Path

from muster.checkout import CHECKOUT
from tests.written import write

# It execs the command without a container, in the folder that `--pwd` names before the image.
APPTAINER = """#!/bin/sh
while [ "$1" != --pwd ]; do shift; done
cd "$2"
export APPTAINER_CONTAINER="$3" TOKEN="${APPTAINERENV_TOKEN-of the image}"
shift 3
exec "$@"
"""
# Folders of this machine with its programs, Python and torch; an image has places for them.
MOUNTS = ("/usr", sys.base_prefix, sys.prefix)
# What ch-run itself mounts.
OF_ENGINE = ("dev", "proc", "sys", "tmp", "etc", "root", "home", "mnt")
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "of-the-image")
# A Python expression that tells whether it runs inside a container.
INSIDE = 'bool(os.environ.get("APPTAINER_CONTAINER") or os.path.exists("/of-the-image"))'

# Its workers meet, and wait. When they are asked to stop, they save.
MEETS = f"""
import os, time
import muster
import torch
import torch.distributed as dist
assert {INSIDE}
muster.on_stop(lambda: open("saved-" + os.environ["RANK"], "w").close())
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
def asleep():
    print("attempt", os.environ["MUSTER_ATTEMPT"], total.item(), flush=True)
    while True:
        time.sleep(0.1)
asleep()
"""


def image(folder: Path, places: Iterable[str | Path] = (CHECKOUT,)) -> Path:
    """Make an image without a Python, in which the folders `MOUNTS` and `places` can be mounted."""
    write(folder, dict.fromkeys(FILES, ""))
    for name in (*OF_ENGINE, *(str(place).lstrip("/") for place in (*MOUNTS, *places))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (folder / name).symlink_to(Path("/", name).readlink())
    return folder


def flags(image: Path) -> list[str]:
    """Return the flags to run a program in `image` with this machine's Python."""
    mounts = ["--container-mounts", ",".join(MOUNTS)]
    return ["--container", str(image), *mounts, "--python", sys.executable]
