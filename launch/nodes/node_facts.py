"""What one node is like, found out on that node, by whatever Python 3 it has.

Its text is sent to `python3` there, before anything of ours is; so it needs the standard library
of Python 3.6 alone. It prints one line of JSON.
"""

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
from subprocess import PIPE  # `capture_output` came with Python 3.7

MARK = "muster:"
# The kernel's answers on its addresses: see man rtnetlink.
GET_ADDRESSES, DUMP, ERROR, DONE = 22, 0x301, 2, 3
IFA_ADDRESS, IFA_LOCAL = 1, 2
LINK_SCOPE = 253  # and beyond: no other network sees such an address
PASSING = 0x01 | 0x20 | 0x40  # IPv6 addresses that are temporary, deprecated or not settled yet
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


def describe(request):  # type: ignore[no-untyped-def]
    """All of it; `request` is as nodes.py makes it."""
    home = os.path.expanduser("~")
    folder = os.path.join(home, os.path.expanduser(request["folder"]))
    shared = bool(request.get("proof")) and os.path.exists(request["proof"])
    if shared and request.get("named"):  # that one is meant, also by who sees the one here
        shared = os.path.exists(folder) and os.path.samefile(folder, request["here"])
    folder = request["here"] if shared else folder
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
        "foreign": [] if shared else _foreign(folder, request["marker"], request["harmless"]),
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


def code_hash(folder):  # type: ignore[no-untyped-def]
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


def _foreign(folder, marker, harmless):  # type: ignore[no-untyped-def]
    """What stands in a folder to which the code was never sent, and where it shall not go."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [] if marker in names else sorted(name for name in names if name not in harmless)


def _resolved(host):  # type: ignore[no-untyped-def]
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _versions(python):  # type: ignore[no-untyped-def]
    try:
        done = subprocess.run(
            [python, "-c", VERSIONS], stdout=PIPE, stderr=PIPE, check=False, timeout=60
        )
        return json.loads(done.stdout.decode()) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def _interfaces():  # type: ignore[no-untyped-def]
    """Every address that others may reach, and those of 127.0.0.0/8, each with its interface."""
    found = []
    for index, family, length, packed in _addresses():
        netmask = str(length)
        if family == socket.AF_INET:
            netmask = socket.inet_ntoa(struct.pack("!Q", 0xFFFFFFFF << (32 - length))[4:])
        try:
            name = socket.if_indextoname(index)
            with open("/sys/class/net/%s/mtu" % name) as mtu:
                size = int(mtu.read())
        except OSError:  # gone meanwhile
            continue
        address = socket.inet_ntop(family, packed)
        found.append({"name": name, "address": address, "netmask": netmask, "mtu": size})
    return found


def _addresses():  # type: ignore[no-untyped-def]
    """Interface number, family, length of the prefix and bytes of each; IPv4 comes first."""
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.send(struct.pack("=IHHIIB", 17, GET_ADDRESSES, DUMP, 1, 0, socket.AF_UNSPEC))
        data = kernel.recv(1 << 16)
        while struct.unpack_from("=IH", data)[1] not in (DONE, ERROR):
            size, _ = struct.unpack_from("=IH", data)
            family, length, flags, scope, index = struct.unpack_from("=BBBBi", data, 16)
            parts = _attributes(data[24:size])
            if family == socket.AF_INET:
                found.append((index, family, length, parts[IFA_LOCAL]))
            elif family == socket.AF_INET6 and scope < LINK_SCOPE and not flags & PASSING:
                found.append((index, family, length, parts.get(IFA_LOCAL, parts[IFA_ADDRESS])))
            data = data[(size + 3) & ~3 :] or kernel.recv(1 << 16)
    return sorted(found, key=lambda one: one[1])


def _attributes(data):  # type: ignore[no-untyped-def]
    """Of one answer, by kind."""
    found = {}
    while data:
        size, kind = struct.unpack_from("=HH", data)
        found[kind] = data[4:size]
        data = data[(size + 3) & ~3 :]
    return found


def _existing(folder):  # type: ignore[no-untyped-def]
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder


def _disk_bytes(folder):  # type: ignore[no-untyped-def]
    return shutil.disk_usage(_existing(folder)).free


def _writable(folder):  # type: ignore[no-untyped-def]
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            return True
    except OSError:
        return False


def _gpus():  # type: ignore[no-untyped-def]
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, stdout=PIPE, stderr=PIPE, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.decode(errors="replace").splitlines() if done.returncode == 0 else []
    return [line.strip() for line in lines if line.strip()]


def _is_free(port):  # type: ignore[no-untyped-def]
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("", port))
        except OSError:
            return False
    return True


def _can_make_environments():  # type: ignore[no-untyped-def]
    asked = [sys.executable or "python3", "-c", "import ensurepip, venv"]
    return subprocess.run(asked, stderr=subprocess.DEVNULL, check=False).returncode == 0


if __name__ == "__main__":
    print(MARK + json.dumps(describe(json.loads(sys.argv[1]))))
