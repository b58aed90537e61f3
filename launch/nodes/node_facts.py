"""A node's side of a survey: it answers questions about itself, its folder and its network.

A survey first sends the text of this file to the node's `python3`, so it may use only the standard
library of Python 3.8. After that, each line of stdin is a question: the name of a function, and its
arguments. The process ends when its stdin ends, which is when the survey ends for any reason.

srun gives the same stdin to all tasks, so all nodes get the same questions. A function finds its
own node's arguments under `question["node"]`. srun also mixes and splits the tasks' output. So an
answer names its node, and comes in parts that are short enough not to be split.

Every pair of nodes is tested with two questions. `listen` makes all nodes accept connections. When
all have answered, `connect` makes each node send to all others. Each direction is tested
separately, since a firewall may block only one.
"""

import atexit
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import shutil
import socket
import socketserver
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ANSWER_MARK = "muster:"
PART = 400  # characters; srun passes on 1024 bytes at a time
PACKAGES = ("configs", "launch", "muster", "train")
# Sending the code overwrites and deletes files, so it goes only into folders with this file.
MARKER = ".muster-sent"
# What the folder may contain before the code: an environment, and a file system's lost+found.
HARMLESS = (".venv", "lost+found")
# The flags of IPv6 addresses that may soon disappear.
UNRELIABLE = ("temporary", "deprecated", "tentative")
# The prefixes of folders that were sent for a run, in logs/ on a node with its own disk.
SENT_PREFIXES = (".snapshot-", ".function-")
LEFTOVERS = 1_000  # at most in one answer
ACTIVE_S = 7 * 24 * 3600.0  # a run may be active if any of its files has changed within this time
AGENT_PACKAGES = ("msgspec", "psutil", "PyYAML", "rich")  # that an agent or a worker needs
SHOWN_PACKAGES = ("torch", "transformers")  # packages whose versions the doctor shows
NAMED_PACKAGES = (*AGENT_PACKAGES, *SHOWN_PACKAGES)  # packages whose versions are asked for
VERSIONS = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
entries = []
for package in m.distributions():
    try:
        entries += package.entry_points
    except Exception:
        pass  # the file of another package may be damaged
print(json.dumps({"python": ".".join(map(str, sys.version_info[:3])),
                  "packages": {name: version(name) for name in sys.argv[1:]},
                  "plugins": sorted({entry.group + ":" + entry.name for entry in entries
                                     if entry.group.startswith("muster.")})}))
"""
# Several packets of any size: if only small ones pass, a link has a wrong MTU.
DATA = b"x" * 200_000
RECEIVED = b"!"


def main():  # type: ignore[no-untyped-def]
    node = os.environ.get(sys.argv[1], sys.argv[1])  # a number, or the variable that holds it
    for line in iter(sys.stdin.buffer.readline, b""):
        text = line.decode()
        if text.startswith(ANSWER_MARK):
            question = json.loads(text[len(ANSWER_MARK) :])
            send(node, {**reply(dict(question, node=node)), "to": question["number"]})


def reply(question):  # type: ignore[no-untyped-def]
    try:
        return {"value": globals()[question["function"]](question)}
    except Exception as error:  # noqa: BLE001  # the survey reports any error
        text = str(error) or type(error).__name__
        # the name of a file may not be valid UTF-8, but JSON must be
        return {"failed": text.encode(errors="backslashreplace").decode()}


def send(node, answer):  # type: ignore[no-untyped-def]
    text = json.dumps(answer)
    for at in range(0, len(text), PART):
        part = {"node": node, "part": text[at : at + PART], "more": at + PART < len(text)}
        sys.stdout.write(ANSWER_MARK + json.dumps(part) + "\n")
    sys.stdout.flush()


def describe(question):  # type: ignore[no-untyped-def]
    """All facts that checks and launchers need; `request` comes from `survey.facts_request`."""
    request = question["request"]
    folder = os.path.join(os.path.expanduser("~"), os.path.expanduser(request["folder"]))
    shared = os.path.exists(request["disk_marker"]) and _has_code(*request["code"])
    if shared and request["named"]:  # the user means that folder, even if this one is visible
        shared = os.path.exists(folder) and os.path.samefile(folder, request["here"])
    folder = request["here"] if shared else folder
    own = request["own_python"] if shared else os.path.join(folder, ".venv", "bin", "python")
    python = request["python"] or own
    disks = dict(request["disks"], checkout=folder)
    return {
        "host": socket.gethostname(),
        "shared": shared,
        "folder": folder,
        "python": python,
        "versions": _versions(python),
        "workers": _versions(request["workers"]) if request["workers"] else None,
        "foreign": [] if shared else _foreign(folder),
        "interfaces": _interfaces(),
        "came_by": os.environ.get("SSH_CONNECTION", "").split(" ")[2:3],
        "towards_origin": _address_towards(os.environ.get(request["origin"])),
        "has_rsync": shutil.which("rsync") is not None,
        "disks": {name: _disk(path, request["here"], folder) for name, path in disks.items()},
        "gpus": _gpus(),
    }


def claim(question):  # type: ignore[no-untyped-def]
    """Mark this node's folder for the checkout; create it if it does not exist.

    Returns {}, or why the code must not be sent there: the names of other content in the folder, or
    why the folder cannot be written.
    """
    node = question["node"]
    folder = question["folders"][node]
    os.umask(os.umask(0o077) | 0o022)  # nobody else may change code that will run
    try:
        os.makedirs(folder, exist_ok=True)
        foreign = _foreign(folder)
        if foreign:
            return {"foreign": foreign}
        open(os.path.join(folder, MARKER), "a").close()
        token = os.path.join(folder, MARKER + question["tokens"][node])
        open(token, "x").close()
    except OSError as error:
        return {"failed": error.strerror or str(error)}
    atexit.register(_remove, token)
    return {}


def claimed_by(question):  # type: ignore[no-untyped-def]
    """The nodes whose `claim` is visible in this node's folder: these nodes share it.

    The folders' paths prove nothing: machines with the same image have the same paths, and nodes
    that share a home may have it at different paths.
    """
    own = os.path.join(question["folders"][question["node"]], MARKER)
    return [node for node, token in question["tokens"].items() if os.path.exists(own + token)]


def leftovers(question):  # type: ignore[no-untyped-def]
    """What was sent for runs below this node's own checkout, and abandoned temporary folders.

    Run folders, and the checkpoints in them, belong to the user. `used`: the run may be active.
    """
    left = [
        {"path": path, "run": run, "bytes": _size(path), "used": _may_be_used(path, run)}
        for path, run in _left_folders(question["folders"][question["node"]])
    ]
    return left[:LEFTOVERS]


def remove_leftovers(question):  # type: ignore[no-untyped-def]
    """Remove the requested folders among `leftovers`; returns the errors, by path."""
    node = question["node"]
    failed = {}
    for path, run in _left_folders(question["folders"][node]):
        if path not in question["paths"][node]:
            continue
        if _may_be_used(path, run):
            failed[path] = "a run has begun to use it"
        else:
            try:
                shutil.rmtree(path)
            except OSError as error:
                failed[path] = error.strerror or str(error)
    return failed


def _left_folders(folder):  # type: ignore[no-untyped-def]
    """The folders left here by runs, each with its run, or with "" for a temporary folder.

    Only a checkout that Muster has sent can contain folders of runs.
    """
    folders = []
    logs = os.path.join(folder, "logs")
    if os.path.exists(os.path.join(folder, MARKER)) and os.path.isdir(logs):
        for name in sorted(os.listdir(logs)):
            path = os.path.join(logs, name)
            sent = [name[len(begin) :] for begin in SENT_PREFIXES if name.startswith(begin)]
            if sent and name.isprintable() and os.path.isdir(path) and not os.path.islink(path):
                folders.append((path, sent[0]))
    folders += [(path, "") for path in _scratch_folders()]
    return folders


def _scratch_folders():  # type: ignore[no-untyped-def]
    """The temporary folders of this user's processes that were killed; see muster/writing.py."""
    folders = []
    for root in sorted({os.path.realpath(tempfile.gettempdir()), "/tmp"}):
        names = []
        with contextlib.suppress(OSError):  # this user may not list it
            names = sorted(os.listdir(root))
        for name in names:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                state = os.lstat(path)
                is_own = stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
                if name.startswith("muster-") and name.isprintable() and is_own:
                    with open(os.path.join(path, ".lock"), "r+b") as lock:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    folders.append(path)
    return folders


def _may_be_used(path, run):  # type: ignore[no-untyped-def]
    """Whether a run may still use what was sent for it to `path`, judging by its files' age."""
    run_dir = os.path.join(os.path.dirname(path), run)
    return run != "" and time.time() - _last_change_s({path, run_dir}) < ACTIVE_S


def _last_change_s(paths):  # type: ignore[no-untyped-def]
    """When anything in these folders last changed."""
    changes_s = []
    for path in paths:
        for folder, _, names in os.walk(path):
            for entry in (folder, *(os.path.join(folder, name) for name in names)):
                with contextlib.suppress(OSError):  # removed meanwhile
                    changes_s.append(os.lstat(entry).st_ctime)
    return max(changes_s, default=0.0)


def _size(path):  # type: ignore[no-untyped-def]
    """The bytes of all files below a folder; symbolic links are not followed."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _foreign(folder):  # type: ignore[no-untyped-def]
    """The names in a folder to which the code was never sent, and must not be; else none."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [] if MARKER in names else sorted(name for name in names if name not in HARMLESS)


def _has_code(path="", digest=""):  # type: ignore[no-untyped-def]
    """Whether this node has the same installation; true for a checkout, which has no such file."""
    if not path:
        return True
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        return False


def _remove(path):  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError):
        os.unlink(path)


def plugins(python):  # type: ignore[no-untyped-def]
    """What a Python's packages add to Muster, such as `muster.tasks:spirals`; None: unknown."""
    return (_versions(python) or {}).get("plugins")


def _versions(python):  # type: ignore[no-untyped-def]
    try:
        lines = _output([python, "-c", VERSIONS, *NAMED_PACKAGES], timeout_s=60)
        return json.loads(lines[-1][lines[-1].index("{") :]) if lines else None
    except ValueError:
        return None


def _interfaces():  # type: ignore[no-untyped-def]
    """Every address that other machines may reach, and those of 127.0.0.0/8; IPv4 comes first."""
    try:
        # -json works since iproute2 4.14; psutil may not be installed yet
        done = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        try:
            interfaces = _interfaces_by_psutil()
        except ImportError:
            raise OSError(
                "`ip -json address` does not work on this node; install iproute2 or psutil"
            ) from error
        return sorted(interfaces, key=lambda entry: ":" in entry["address"])
    interfaces = []
    for link in json.loads(done.stdout):
        for entry in link.get("addr_info", ()):
            is_lasting = entry["scope"] != "link" and not any(
                entry.get(word) for word in UNRELIABLE
            )
            if entry["family"] == "inet" or (entry["family"] == "inet6" and is_lasting):
                interfaces.append(
                    {
                        "name": link["ifname"],
                        "address": entry["local"],
                        "netmask": str(entry["prefixlen"]),
                    }
                )
    return sorted(interfaces, key=lambda entry: ":" in entry["address"])


def _interfaces_by_psutil():  # type: ignore[no-untyped-def]
    """The same for a node without iproute2; psutil does not show which IPv6 addresses may change.

    Raises:
        ImportError: the node's Python has no psutil.
    """
    import psutil

    return [
        {
            "name": name,
            "address": card_address.address,
            "netmask": str(bin(int(ipaddress.ip_address(card_address.netmask))).count("1")),
        }
        for name, several in psutil.net_if_addrs().items()
        for card_address in several
        if card_address.family in (socket.AF_INET, socket.AF_INET6)
        and card_address.netmask
        and "%" not in card_address.address
        and card_address.address != "::1"
    ]


def _address_towards(host):  # type: ignore[no-untyped-def]
    """This node's address on the route to `host`; None if there is no host, or it is this node."""
    if not host:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((host, 9))  # sends nothing
        address = way.getsockname()[0]
    return None if address.startswith(("127.", "::1")) else address


def _disk(path, here, folder):  # type: ignore[no-untyped-def]
    """Free space at `path`, which need not exist; a path in the checkout means the node's copy."""
    if path.startswith(here + os.sep):
        path = os.path.join(folder, os.path.relpath(path, here))
    nearest = next(parent for parent in (Path(path), *Path(path).parents) if parent.is_dir())
    free = shutil.disk_usage(str(nearest)).free
    return {"folder": path, "exists": os.path.isdir(path), "free_bytes": free}


def _gpus():  # type: ignore[no-untyped-def]
    argv = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    # other lines are warnings, for example about a card's infoROM
    return [line.strip() for line in _output(argv, timeout_s=30) if "," in line]


def _output(argv, timeout_s):  # type: ignore[no-untyped-def]
    """The lines that a command prints; none if it cannot be run, fails, or takes too long."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else done.stdout.decode(errors="replace").splitlines()


def tell_time(question):  # type: ignore[no-untyped-def]
    return time.time()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 1024


class Receive(socketserver.StreamRequestHandler):
    timeout = 30

    def handle(self):  # type: ignore[no-untyped-def]
        with contextlib.suppress(OSError):
            if len(self.rfile.read(len(DATA))) == len(DATA):
                self.wfile.write(RECEIVED)


def listen(question):  # type: ignore[no-untyped-def]
    """Accept connections at this node's address; returns the port."""
    address = question["addresses"][question["node"]]
    Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = Server((address, 0), Receive)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def connect(question):  # type: ignore[no-untyped-def]
    """Send to all other nodes at the same time; returns each error, or "", and connect time (s)."""
    others = {node: at for node, at in question["servers"].items() if node != question["node"]}
    with ThreadPoolExecutor(len(others) or 1) as pool:
        tries = {node: pool.submit(_try, at, question["patience_s"]) for node, at in others.items()}
    return {node: tried.result() for node, tried in tries.items()}


def _try(server, timeout_s):  # type: ignore[no-untyped-def]
    began = time.monotonic()
    connect_s = None
    try:
        with socket.create_connection(tuple(server), timeout=timeout_s) as connection:
            connect_s = time.monotonic() - began
            connection.sendall(DATA)
            trouble = "" if connection.recv(1) == RECEIVED else "stalls"
    except OSError as error:
        late = "no answer" if isinstance(error, socket.timeout) else error.strerror or str(error)
        trouble = "stalls" if connect_s is not None else late.lower()
    return [trouble, connect_s]


if __name__ == "__main__":
    main()
