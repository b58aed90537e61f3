"""What one node is like, and whether its folder may hold the checkout, found out on that node.

Its text is sent to the node, see `remote_probe`, so it needs the standard library of Python 3.8
alone.
"""

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess

PACKAGES = ("configs", "launch", "muster", "train")
# Sending the code overwrites and deletes files: it goes into folders with this file only.
MARKER = ".muster-sent"
# An environment may be there before the code; a disk's own file system has the other.
HARMLESS = (".venv", "lost+found")
# IPv6 addresses that are not to be relied on.
PASSING = ("temporary", "deprecated", "tentative")
VERSIONS = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"python": ".".join(map(str, sys.version_info[:3])),
                  **{name: version(name) for name in ("torch", "transformers")}}))
"""


def describe(asked):  # type: ignore[no-untyped-def]
    """Everything that checks and launchers ask for; `request` comes from `survey.facts_request`."""
    request = asked["request"]
    folder = os.path.join(os.path.expanduser("~"), os.path.expanduser(request["folder"]))
    shared = os.path.exists(request["proof"])
    if shared and request["named"]:  # the user means that folder, even where this one is seen
        shared = os.path.exists(folder) and os.path.samefile(folder, request["here"])
    folder = request["here"] if shared else folder
    python = request["python"] or os.path.join(folder, ".venv", "bin", "python")
    disks = dict(request["disks"], checkout=folder)
    return {
        "host": socket.gethostname(),
        "shared": shared,
        "folder": folder,
        "python": python,
        "versions": _versions(python),
        "code": code_hash(folder),
        "foreign": [] if shared else _foreign(folder),
        "interfaces": _interfaces(),
        "came_by": os.environ.get("SSH_CONNECTION", "").split(" ")[2:3],
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "disks": {name: _disk(path, request["here"], folder) for name, path in disks.items()},
        "gpus": _gpus(),
        "rsync": shutil.which("rsync") is not None,
    }


def claim(asked):  # type: ignore[no-untyped-def]
    """Mark this node's folder as one for the checkout: make it where it is not there yet.

    Returns what stands against it: the names of what else it holds, or why it cannot be written.
    """
    node = asked["node"]
    folder = asked["folders"][node]
    try:
        os.makedirs(folder, exist_ok=True)
        foreign = _foreign(folder)
        if foreign:
            return {"foreign": foreign}
        open(os.path.join(folder, MARKER), "a").close()
        token = os.path.join(folder, MARKER + asked["tokens"][node])
        open(token, "x").close()
    except OSError as error:
        return {"failed": error.strerror or str(error)}
    atexit.register(_remove, token)
    return {}


def claimed_by(asked):  # type: ignore[no-untyped-def]
    """The nodes whose `claim` is seen in this node's folder: it is theirs as well.

    Their folders' names tell nothing: machines of one image have equal folders, and nodes that
    share a home may have it at different places.
    """
    own = os.path.join(asked["folders"][asked["node"]], MARKER)
    return [node for node, token in asked["tokens"].items() if os.path.exists(own + token)]


def code_hash(folder):  # type: ignore[no-untyped-def]
    """A hash of all Python files that would run there; None where there is no checkout."""
    total = hashlib.sha256()
    found = False
    for package in PACKAGES:
        for root, folders, files in os.walk(os.path.join(folder, package)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".py", ".yaml", ".json")):
                    found = True
                    path = os.path.join(root, name)
                    total.update(os.path.relpath(path, folder).encode() + b"\0")
                    with open(path, "rb") as file:
                        total.update(file.read())
    return total.hexdigest()[:16] if found else None


def _foreign(folder):  # type: ignore[no-untyped-def]
    """The names in a folder that the code was never sent to, so that it must not go there."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [] if MARKER in names else sorted(name for name in names if name not in HARMLESS)


def _remove(path):  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError):
        os.unlink(path)


def _versions(python):  # type: ignore[no-untyped-def]
    try:
        lines = _output([python, "-c", VERSIONS], timeout_s=60)
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def _interfaces():  # type: ignore[no-untyped-def]
    """Every address that others may reach, and those of 127.0.0.0/8; IPv4 comes first."""
    try:
        # since 4.14 of iproute2; psutil may not be there yet
        done = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise OSError("no `ip -json address` there; install iproute2") from error
    found = []
    for link in json.loads(done.stdout):
        for one in link.get("addr_info", ()):
            is_lasting = one["scope"] != "link" and not any(one.get(word) for word in PASSING)
            if one["family"] == "inet" or (one["family"] == "inet6" and is_lasting):
                found.append(
                    {
                        "name": link["ifname"],
                        "address": one["local"],
                        "netmask": str(one["prefixlen"]),
                        "state": link["operstate"].lower(),  # unknown, of a tunnel
                    }
                )
    return sorted(found, key=lambda one: ":" in one["address"])


def _disk(path, here, folder):  # type: ignore[no-untyped-def]
    """What is free where `path` is or will be; what lies in the checkout lies in the node's."""
    if path.startswith(here + os.sep):
        path = os.path.join(folder, os.path.relpath(path, here))
    free = shutil.disk_usage(_existing(path)).free
    return {"folder": path, "exists": os.path.isdir(path), "free_bytes": free}


def _existing(folder):  # type: ignore[no-untyped-def]
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _gpus():  # type: ignore[no-untyped-def]
    argv = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return [line.strip() for line in _output(argv, timeout_s=30) if line.strip()]


def _output(argv, timeout_s):  # type: ignore[no-untyped-def]
    """The lines that a command prints; none if it cannot be run, fails, or takes too long."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else done.stdout.decode(errors="replace").splitlines()
