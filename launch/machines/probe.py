"""What one node is like, found out on that node, by whatever Python 3 it has.

Its text is sent to `python3` there, before anything of ours is; so it needs the standard library
of an old Python alone. It prints one line of JSON.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

MARK = "muster:"
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
VERSIONS = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({"python": ".".join(map(str, sys.version_info[:3])),
                  **{name: version(name) for name in ("torch", "transformers", "psutil")}}))
"""


def describe(request: dict) -> dict:  # type: ignore[type-arg]
    """All of it. `request` has `folder` (of the checkout), `python`, `proof` and `ports`."""
    home = os.path.expanduser("~")
    shared = bool(request.get("proof")) and os.path.exists(request["proof"])
    folder = request["here"] if shared else request["folder"]
    folder = os.path.join(home, os.path.expanduser(folder))
    python = request.get("python") or os.path.join(folder, ".venv", "bin", "python")
    return {
        "host": socket.gethostname(),
        "resolves": _resolved(socket.gethostname()),
        "home": home,
        "shared": shared,
        "folder": folder,
        "python": python,
        "versions": _versions(python),
        "code": code_hash(folder),
        "interfaces": _interfaces(),
        "came_by": os.environ.get("SSH_CONNECTION", "").split(" ")[2:3],
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk_bytes": _disk_bytes(folder),
        "writable": _writable(folder),
        "gpus": _gpus(),
        "busy_ports": [port for port in request.get("ports", []) if not _is_free(port)],
        "rsync": shutil.which("rsync") is not None,
        "venv": _can_make_environments(),
        "time_unix_s": time.time(),
    }


def code_hash(folder: str) -> str | None:
    """Of all Python files that run there; None where there is no checkout."""
    total = hashlib.sha256()
    found = False
    for package in ("configs", "launch", "train"):
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


def _resolved(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _versions(python: str) -> dict | None:  # type: ignore[type-arg]
    try:
        done = subprocess.run(
            [python, "-c", VERSIONS], capture_output=True, check=False, timeout=60
        )
        return json.loads(done.stdout.decode()) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _interfaces() -> list:  # type: ignore[type-arg]
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            packed = struct.pack("256s", name.encode()[:15])
            try:
                address = fcntl.ioctl(asked, SIOCGIFADDR, packed)[20:24]
                netmask = fcntl.ioctl(asked, SIOCGIFNETMASK, packed)[20:24]
                with open("/sys/class/net/%s/mtu" % name) as mtu:
                    found.append(
                        {
                            "name": name,
                            "address": socket.inet_ntoa(address),
                            "netmask": socket.inet_ntoa(netmask),
                            "mtu": int(mtu.read()),
                        }
                    )
            except OSError:  # without an address
                continue
    return found


def _existing(folder: str) -> str:
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _disk_bytes(folder: str) -> int:
    return shutil.disk_usage(_existing(folder)).free


def _writable(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            return True
    except OSError:
        return False


def _gpus() -> list:  # type: ignore[type-arg]
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.decode(errors="replace").splitlines() if done.returncode == 0 else []
    return [line.strip() for line in lines if line.strip()]


def _is_free(port: int) -> bool:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError:
            return False
    return True


def _can_make_environments() -> bool:
    asked = [sys.executable or "python3", "-c", "import ensurepip, venv"]
    return subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode == 0


if __name__ == "__main__":
    print(MARK + json.dumps(describe(json.loads(sys.argv[1]))))
