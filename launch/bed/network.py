"""Nodes are network namespaces on a bridge, and the box is on that bridge, too."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from configs.errors import MusterError
from launch.bed.commands import call
from launch.bed.nodes import BOX, CONTROL_NET, EXPERIMENT_NET, Node

NAMESPACES = Path("/run/netns")
# Nothing with another name is ever touched.
OUR_NAMESPACE = re.compile(r"muster-node[0-9]+")
OUR_LINK = re.compile(r"muster-(br[01]|exp[0-9]+|ctl[0-9]+)")
MTU = 1500
# The bucket of tbf: what passes at once. A packet larger than it would never pass.
LEAST_BURST_BYTES = 32 * 1024
BURST_S = 0.01
QUEUE_MS = 50


def make(nodes: Sequence[Node], rate: int | None) -> None:
    """Make the namespaces and join them, each link limited to `rate` bits per second if given.

    Raises:
        MusterError: the kernel refused, or another interface has addresses of the bed.
    """
    for node in nodes:
        call(["ip", "netns", "add", node.netns])
    _join(nodes, "muster-br0", "exp", EXPERIMENT_NET)
    if any(node.control for node in nodes):
        _join(nodes, "muster-br1", "ctl", CONTROL_NET)
    if rate is not None:
        for node in nodes:
            call(["tc", "-n", node.netns, *_limit("exp0", rate)])
            call(["tc", *_limit(f"muster-exp{node.number}", rate)])


def _join(nodes: Sequence[Node], bridge: str, kind: str, net: str) -> None:
    """One network: a bridge with the box's address, and an interface in each node."""
    _refuse_foreign(net)
    _ip(
        f"link add {bridge} mtu {MTU} type bridge stp_state 0 forward_delay 0",
        f"address add {net}.{BOX}/24 dev {bridge}",
        f"link set {bridge} up",
    )
    for node in nodes:
        ours = f"muster-{kind}{node.number}"
        _ip(
            f"link add {ours} mtu {MTU} type veth peer name {kind}0 mtu {MTU} netns {node.netns}",
            f"link set {ours} master {bridge} up",
        )
        _ip(
            "link set lo up",
            f"address add {net}.{node.number + 1}/24 dev {kind}0",
            f"link set {kind}0 up",
            netns=node.netns,
        )


def namespaces() -> list[Path]:
    """The network namespaces of the bed that are there, whoever made them."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(path for path in NAMESPACES.iterdir() if OUR_NAMESPACE.fullmatch(path.name))


def links() -> list[str]:
    """The bed's interfaces on the box that are there."""
    found = json.loads(call(["ip", "-json", "link", "show"]))
    return [link["ifname"] for link in found if OUR_LINK.fullmatch(link["ifname"])]


def remove() -> None:
    """Leave no interface and no namespace of the bed.

    Raises:
        MusterError: the kernel refused.
    """
    # A namespace takes its interfaces along, but only some time after it is gone.
    for name in links():
        try:
            call(["ip", "link", "delete", name])
        except MusterError:
            if name in links():  # it did not go with its other end in the meantime, either
                raise
    for path in namespaces():
        call(["ip", "netns", "delete", path.name])
    # `ip netns add` makes this folder a mount of its own and leaves it for good.
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        if mounted_below(NAMESPACES):
            call(["umount", "--no-mtab", str(NAMESPACES)])
        NAMESPACES.rmdir()


def mounted_below(folder: Path) -> list[str]:
    """Where something is mounted on `folder` or in it; a bind mount counts, too."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [at for at in (line.split()[1] for line in lines) if Path(at).is_relative_to(folder)]


def _limit(interface: str, rate: int) -> list[str]:
    burst = max(LEAST_BURST_BYTES, round(rate / 8 * BURST_S))
    words = (
        f"qdisc replace dev {interface} root tbf rate {rate}bit burst {burst} latency {QUEUE_MS}ms"
    )
    return words.split()


def _ip(*lines: str, netns: str | None = None) -> None:
    inside = ["-netns", netns] if netns else []
    call(["ip", *inside, "-batch", "-"], given="\n".join(lines) + "\n")


def _refuse_foreign(net: str) -> None:
    for link in json.loads(call(["ip", "-json", "-4", "address", "show"])):
        for address in link["addr_info"]:
            if address["local"].startswith(f"{net}."):
                raise MusterError(
                    f"{link['ifname']} has {address['local']} already, and a bed uses {net}.0/24;"
                    " make the bed on another box"
                )
