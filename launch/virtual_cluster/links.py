"""Nodes are network namespaces on a bridge, and this machine (the box) is on it, too.

How it works: each link of a node is a veth pair: two interfaces, each of which receives what the
other sends. One end, `exp0`, is in the node's network namespace. The other stays on the box and
joins a bridge, a virtual switch, on which the box also has an address:

    node0: exp0 10.10.1.1 -- muster-exp0 --+
                                           +-- muster-br0 10.10.1.254
    node1: exp0 10.10.1.2 -- muster-exp1 --+

A control network is a second bridge. A rate limits what an end sends (`tc`'s token bucket), so both
ends of a pair have one. Namespaces and links are found by their names alone, so `down` also removes
what a killed `up` has left.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from launch.deadlines import LINK_BURST_S
from launch.virtual_cluster.commands import call
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.virtual_nodes import (
    BOX,
    CONTROL_NET,
    EXPERIMENT_NET,
    EXPERIMENT_NET_6,
    Node,
    Options,
)
from muster.errors import MusterError

NAMESPACES = Path("/run/netns")
# Nothing with another name is ever touched.
OUR_NAMESPACE = re.compile(r"muster-node[0-9]+")
OUR_LINK = re.compile(r"muster-(br[01]|(exp|ctl)[0-9]+)")
MTU = 1500
# The bucket of tbf: the bytes that pass at once. A packet larger than it would never pass.
LEAST_BURST_BYTES = 32 * 1024
QUEUE_MS = 50


def make(nodes: Sequence[Node], options: Options) -> None:
    """Make the namespaces and links, each limited to the options' rate if there is one.

    Raises:
        MusterError: the kernel refused, or another interface has addresses of the testbed.
    """
    cards = {"exp": EXPERIMENT_NET_6 if options.ipv6 else f"{EXPERIMENT_NET}."}
    if options.control_network:
        cards["ctl"] = f"{CONTROL_NET}."
    for net in cards.values():
        _refuse_foreign(net)
    for node in nodes:
        call(["ip", "netns", "add", node.netns])
    own = {"cards": cards, "mtu": MTU, "box": BOX}
    call(["ip", "-batch", "-"], stdin=render("links.box", nodes=nodes, **own))
    for node in nodes:
        lines = render("links.node", node=node, **own)
        call(["ip", "-netns", node.netns, "-batch", "-"], stdin=lines)
        if options.rate is not None:
            call(["tc", "-n", node.netns, *_limit("exp0", options.rate)])
            call(["tc", *_limit(f"muster-exp{node.number}", options.rate)])


def namespaces() -> list[Path]:
    """The existing network namespaces of testbeds, whoever made them."""
    return sorted(one for one in NAMESPACES.glob("*") if OUR_NAMESPACE.fullmatch(one.name))


def links() -> list[str]:
    """The existing interfaces of testbeds on the box."""
    found = json.loads(call(["ip", "-json", "link", "show"]))
    return [link["ifname"] for link in found if OUR_LINK.fullmatch(link["ifname"])]


def remove() -> None:
    """Remove all interfaces and namespaces of the testbed.

    Raises:
        MusterError: the kernel refused.
    """
    # A namespace's interfaces are removed some time after it.
    for name in links():
        try:
            call(["ip", "link", "delete", name])
        except MusterError:
            if name in links():  # it has not disappeared with its other end
                raise
    for path in namespaces():
        call(["ip", "netns", "delete", path.name])
    # `ip netns add` makes this folder a mount and never unmounts it.
    if NAMESPACES.is_dir() and not any(NAMESPACES.iterdir()):
        if mounted_below(NAMESPACES):
            call(["umount", "--no-mtab", str(NAMESPACES)])
        NAMESPACES.rmdir()


def mounted_below(folder: Path) -> list[str]:
    """The mounts on `folder` or in it, including bind mounts."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return [at for at in (line.split()[1] for line in lines) if Path(at).is_relative_to(folder)]


def _limit(interface: str, rate: int) -> list[str]:
    burst = max(LEAST_BURST_BYTES, round(rate / 8 * LINK_BURST_S))
    bucket = f"tbf rate {rate}bit burst {burst} latency {QUEUE_MS}ms"
    return ["qdisc", "replace", "dev", interface, "root", *bucket.split()]


def _refuse_foreign(net: str) -> None:
    for link in json.loads(call(["ip", "-json", "address", "show"])):
        for address in link["addr_info"]:
            if address["local"].startswith(net):
                raise MusterError(
                    f"{link['ifname']} has {address['local']} already, and a testbed uses all that"
                    f" begins with {net}; make the testbed on another machine"
                )
