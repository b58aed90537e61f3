"""Give each node its own view: its name, hosts and interfaces, and its own files if it is private.

How it works: a node is three Linux namespaces (`man 7 namespaces`). `links` makes its network
namespace. The node's anchor is a process that only sleeps. It joins the network namespace and makes
two others, which live as long as the anchor: a UTS namespace (the hostname) and a mount namespace.
Every other process of the node is started through `nsenter --target=PID`, with the anchor's PID.
Only the node sees the mounts that are made in it, but new mounts of the machine appear in it, too
(propagation is `slave`).

On a testbed with private homes each node has a second anchor, in a mount namespace below that of
the first. In this namespace empty file systems cover the home, /tmp and the checkout; sshd and its
sessions run in it.
"""

import pwd
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launch.virtual_cluster import daemons, links
from launch.virtual_cluster.commands import call
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.virtual_nodes import STATE, VirtualNode
from muster.errors import MusterError

HOSTS = STATE / "etc_hosts"
CGROUPS = Path("/sys/fs/cgroup")
# The daemons that keep a node's namespaces alive.
ANCHOR = "anchor"
PRIVATE = "private"


def home() -> Path:
    """Root's home, where a session of sshd begins."""
    return Path(pwd.getpwuid(0).pw_dir)


def enter(node: VirtualNode, *, private: bool = False) -> list[str]:
    """The words to put before a command so that it runs on `node`.

    Raises:
        MusterError: no process holds the node's namespaces.
    """
    name = node.daemon(PRIVATE if private else ANCHOR)
    pid = daemons.pid(name)
    if pid is None:
        raise MusterError(
            f"{name} no longer exists\ntip: make the testbed again with `down`, then `up`"
        )
    return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--"]


def make(node: VirtualNode) -> None:
    """Give `node` its name, its hosts and its own /sys; all other files are the box's.

    Raises:
        MusterError: the kernel refused.
    """
    # `ip netns exec` would mount another /sys and hide the cgroups, which slurmd needs.
    own_network = ["nsenter", f"--net={links.NAMESPACES / node.netns}"]
    _start_anchor(node.daemon(ANCHOR), own_network, ["--uts", "--mount"], node)
    aside = _folder(node, "aside")
    text = render("node_view.sh", node=node, hosts=HOSTS, cgroups=CGROUPS, aside=aside)
    call([*enter(node), "sh", "-euc", text])


def make_private(node: VirtualNode, checkout: Path, venv: Path | None) -> None:
    """Give sessions on `node` an empty home and /tmp, without the checkout, like a new machine.

    The only hidden files that stay visible are `venv`, as ~/muster/.venv, and the Python it uses.

    Raises:
        MusterError: the kernel refused, or the environment's Python does not run there.
    """
    _start_anchor(node.daemon(PRIVATE), enter(node), ["--mount"], node)
    hidden = {home(): "0700", Path("/tmp"): "1777", checkout: "0755"}
    parts = _visible_parts(venv, hidden) if venv else {}
    visible = [
        (path, source, _folder(node, f"visible{number}"))
        for number, (path, source) in enumerate(parts.items())
    ]
    tops = {path: hidden[path] for path in hidden if hidden.keys().isdisjoint(path.parents)}
    text = render("private_view.sh", visible=visible, hidden=tops)
    call([*enter(node, private=True), "sh", "-euc", text])


def _visible_parts(venv: Path, hidden: Iterable[Path]) -> dict[Path, Path]:
    """The visible parts of the hidden folders on a private node: each place and its source."""
    parts = {home() / "muster" / ".venv": venv}
    python = (venv / "bin" / "python").resolve().parent.parent
    if any(path in python.parents for path in hidden):  # pyenv and uv install Pythons in the home
        parts[python] = python
    return parts


def _start_anchor(name: str, entering: list[str], new: list[str], node: VirtualNode) -> None:
    """Start an anchor; `entering` are words before its command, `new` are options of unshare."""
    unshare = ["unshare", *new, "--propagation", "slave"]
    daemons.start(name, [*entering, *unshare, "sleep", "infinity"], node.cores)

    def is_asleep() -> bool:  # the process becomes `sleep` once it has all its namespaces
        with suppress(OSError):
            return Path(f"/proc/{daemons.pid(name)}/comm").read_text() == "sleep\n"
        return False

    daemons.wait(name, is_asleep)


def _folder(node: VirtualNode, name: str) -> Path:
    path = STATE / "nodes" / node.name / name
    path.mkdir(parents=True, exist_ok=True)
    return path
