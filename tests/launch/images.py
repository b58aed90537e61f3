"""What tests of `--container` run in: charliecloud itself, and a stand-in for apptainer."""

import sys
from collections.abc import Iterable
from pathlib import Path

from muster.checkout import CHECKOUT
from tests.written import executable, write

# It takes its words as apptainer does, notes them, and becomes the command, outside.
APPTAINER = """#!/bin/sh
echo "$@" >> {calls}
fail() {{ echo "FATAL:   $1" >&2; exit 255; }}
[ "$1" = exec ] || fail "unknown command $1"
shift
while :; do
    case "$1" in
        --nv) shift ;;
        --bind) [ -e "${{2%%:*}}" ] || fail "mount source $2 doesn't exist"; shift 2 ;;
        --pwd) folder=$2; shift 2 ;;
        -*) fail "unknown flag $1" ;;
        *) break ;;
    esac
done
[ -e "$1" ] || fail "could not open image $1"
APPTAINER_CONTAINER=$1
TOKEN=${{APPTAINERENV_TOKEN-that of the image}}
export APPTAINER_CONTAINER TOKEN
shift
command -v "$1" >/dev/null || fail "\\"$1\\": executable file not found in \\$PATH"
cd "$folder"
exec "$@"
"""
# Folders of this machine with its programs, Python and torch; an image has places for them.
MOUNTS = ("/usr", sys.base_prefix, sys.prefix)
# What ch-run itself mounts.
OF_ENGINE = ("dev", "proc", "sys", "tmp", "etc", "root", "home", "mnt")
FILES = ("etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "of-the-image")
SET = ("APPTAINER_CONTAINER", "CH_RUNNING")  # variables that the engines set
# Whether it is inside, as an expression of Python.
INSIDE = 'os.environ.get("APPTAINER_CONTAINER") or os.path.exists("/of-the-image")'

# It waits, and saves when it is asked to stop.
WAITS = f"""
import os, time
import muster
def save():
    with open("saved-" + os.environ["RANK"], "w") as file:
        print(bool({INSIDE}), file=file)
muster.on_stop(save)
def asleep():
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
asleep()
"""
DDP = f"""
import os
import torch
import torch.distributed as dist
assert {INSIDE}
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("total", total.item(), flush=True)
dist.destroy_process_group()
"""


def apptainer(folder: Path) -> Path:
    """The folder for PATH with the stand-in; `calls` there has its words, a call in each line."""
    executable(folder / "apptainer", APPTAINER.format(calls=folder / "calls"))
    return folder


def image(folder: Path, places: Iterable[str | Path] = (CHECKOUT,)) -> Path:
    """An image without a Python, in which the folders `MOUNTS` and `places` can be mounted."""
    write(folder, dict.fromkeys(FILES, ""))
    for name in (*OF_ENGINE, *(str(place).lstrip("/") for place in (*MOUNTS, *places))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (folder / name).symlink_to(Path("/", name).readlink())
    return folder


def flags(image: Path, python: str = sys.executable) -> list[str]:
    """The flags with which a program runs in `image`, with this machine's Python."""
    mounts = ["--container-mounts", ",".join(MOUNTS)]
    return ["--container", str(image), *mounts, "--python", python]
