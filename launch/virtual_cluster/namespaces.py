"""A node's own view: its name, hosts and interfaces, and its own files if it is private.

How it works: a node is three Linux namespaces (`man 7 namespaces`). `links` makes its network
namespace. The node's anchor, a process that only sleeps, joins that one and makes its own UTS
namespace (the hostname) and mount namespace; both live as long as it does. Every other process of
the node is started through `nsenter --target=PID of the anchor`. Only the node sees mounts made in
it: propagation is `slave`, so that new mounts of the machine still appear in it. On a testbed with
private homes a second anchor, in a mount namespace below the first one's, covers the home, /tmp and
the checkout with empty file systems; sshd and its sessions run in it.
"""

import pwd
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from launch.virtual_cluster import daemons, links
from launch.virtual_cluster.commands import call
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.virtual_nodes import STATE, Node
from muster.errors import MusterError

HOSTS = STATE / "etc_hosts"
CGROUPS = Path("/sys/fs/cgroup")
ANCHOR, PRIVATE = "anchor", "private"  # the daemons that hold a node's namespaces


def home() -> Path:
    """Root's home, where a session of sshd begins."""
    return Path(pwd.getpwuid(0).pw_dir)


def enter(node: Node, *, private: bool = False) -> list[str]:
    """The words to put before a command so that it runs on `node`.

    Raises:
        MusterError: no process holds the node's namespaces.
    """
    name = node.daemon(PRIVATE if private else ANCHOR)
    pid = daemons.pid(name)
    if pid is None:
        raise MusterError(f"{name} is gone; make the testbed again with `down`, then `up`")
    return ["nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--"]


def make(node: Node) -> None:
    """Give `node` its name, its hosts and its own /sys; all other files are the box's.

    Raises:
        MusterError: the kernel refused.
    """
    # Not `ip netns exec`: it mounts another /sys and hides the cgroups, which slurmd needs.
    own_network = ["nsenter", f"--net={links.NAMESPACES / node.netns}"]
    _hold(node.daemon(ANCHOR), own_network, ["--uts", "--mount"], node)
    aside = _folder(node, "aside")
    text = render("node_view.sh", node=node, hosts=HOSTS, cgroups=CGROUPS, aside=aside)
    call([*enter(node), "sh", "-euc", text])


def make_private(node: Node, checkout: Path, venv: Path | None) -> None:
    """Give sessions on `node` an empty home and /tmp, without the checkout, like a new machine.

    Only `venv` is visible, as ~/muster/.venv, and the Python that it uses.

    Raises:
        MusterError: the kernel refused, or the environment's Python does not run there.
    """
    _hold(node.daemon(PRIVATE), enter(node), ["--mount"], node)
    hidden = {home(): "0700", Path("/tmp"): "1777", checkout: "0755"}
    shown = [
        (path, source, _folder(node, f"shown{number}"))
        for number, (path, source) in enumerate(_shown(venv, hidden).items() if venv else ())
    ]
    tops = {path: hidden[path] for path in hidden if hidden.keys().isdisjoint(path.parents)}
    text = render("private_view.sh", shown=shown, hidden=tops)
    call([*enter(node, private=True), "sh", "-euc", text])


def _shown(venv: Path, hidden: Iterable[Path]) -> dict[Path, Path]:
    """The visible parts of the hidden folders on a private node: each place and its source."""
    shown = {home() / "muster" / ".venv": venv}
    python = (venv / "bin" / "python").resolve().parent.parent
    if any(path in python.parents for path in hidden):  # pyenv and uv install theirs in the home
        shown[python] = python
    return shown


def _hold(name: str, entering: list[str], own: list[str], node: Node) -> None:
    """Start a process that only holds its `own` namespaces, and those that it is `entering`."""
    unshare = ["unshare", *own, "--propagation", "slave"]
    daemons.start(name, [*entering, *unshare, "sleep", "infinity"], node.cores)

    def is_asleep() -> bool:  # it enters its namespaces first and becomes `sleep` last
        with suppress(OSError):
            return Path(f"/proc/{daemons.pid(name)}/comm").read_text() == "sleep\n"
        return False

    daemons.wait(name, is_asleep)


def _folder(node: Node, name: str) -> Path:
    path = STATE / "nodes" / node.name / name
    path.mkdir(parents=True, exist_ok=True)
    return path
