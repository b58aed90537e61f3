"""Make the networks of a testbed: nodes are network namespaces on a bridge of this machine.

In the testbed's modules this machine itself is called the box.

How it works: each link of a node is a veth pair, two interfaces that each receive what the other
sends. One end, `exp0`, is in the node's network namespace. The other stays on the box and
joins a bridge, a virtual switch, on which the box also has an address:

    node0: exp0 10.10.1.1 -- muster-exp0 --+
                                           +-- muster-br0 10.10.1.254
    node1: exp0 10.10.1.2 -- muster-exp1 --+

A control network is a second bridge. A rate limits what an interface sends (`tc`'s token bucket),
so both interfaces of a pair have one. Namespaces and links are recognised by their names alone, so
`down` also removes what a killed `up` left behind.
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
    Options,
    VirtualNode,
)
from muster.errors import MusterError

NAMESPACES = Path("/run/netns")
# A namespace or link with another name is never changed or removed.
OUR_NAMESPACE = re.compile(r"muster-node[0-9]+")
OUR_LINK = re.compile(r"muster-(br[01]|(exp|ctl)[0-9]+)")
MTU = 1500
# The least size of tbf's bucket, whose bytes can pass in one burst. A packet larger than the bucket
# would never pass.
LEAST_BURST_BYTES = 32 * 1024
QUEUE_MS = 50


def make(nodes: Sequence[VirtualNode], options: Options) -> None:
    """Make the namespaces and links, each limited to the options' rate if there is one.

    Raises:
        MusterError: the kernel refused, or another interface has addresses of the testbed.
    """
    cards = {"exp": EXPERIMENT_NET_6 if options.ipv6 else f"{EXPERIMENT_NET}."}
    if options.control_network:
        cards["ctl"] = f"{CONTROL_NET}."
    for net in cards.values():
        _refuse_used(net)
    for node in nodes:
        call(["ip", "netns", "add", node.netns])
    values = {"cards": cards, "mtu": MTU, "box": BOX}
    call(["ip", "-batch", "-"], stdin=render("links.box", nodes=nodes, **values))
    for node in nodes:
        lines = render("links.node", node=node, **values)
        call(["ip", "-netns", node.netns, "-batch", "-"], stdin=lines)
        if options.rate is not None:
            call(["tc", "-n", node.netns, *_limit("exp0", options.rate)])
            call(["tc", *_limit(f"muster-exp{node.number}", options.rate)])


def namespaces() -> list[Path]:
    """The existing network namespaces of testbeds, no matter who made them."""
    return sorted(path for path in NAMESPACES.glob("*") if OUR_NAMESPACE.fullmatch(path.name))


def links() -> list[str]:
    """The existing interfaces of testbeds on the box."""
    names = [link["ifname"] for link in json.loads(call(["ip", "-json", "link", "show"]))]
    return [name for name in names if OUR_LINK.fullmatch(name)]


def remove() -> None:
    """Remove all interfaces and namespaces of the testbed.

    Raises:
        MusterError: the kernel refused.
    """
    # The kernel removes the interfaces of a namespace some time after the namespace itself.
    for name in links():
        try:
            call(["ip", "link", "delete", name])
        except MusterError:
            if name in links():  # otherwise it disappeared with the other interface of its pair
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
    mounts = [line.split()[1] for line in lines]
    return [mount for mount in mounts if Path(mount).is_relative_to(folder)]


def _limit(interface: str, rate: int) -> list[str]:
    """The words of `tc` that limit what an interface sends to `rate` bits per second."""
    burst = max(LEAST_BURST_BYTES, round(rate / 8 * LINK_BURST_S))
    bucket = f"tbf rate {rate}bit burst {burst} latency {QUEUE_MS}ms"
    return ["qdisc", "replace", "dev", interface, "root", *bucket.split()]


def _refuse_used(net: str) -> None:
    """Refuse a network if an interface of the machine has an address in it.

    Raises:
        MusterError: an interface has such an address.
    """
    for link in json.loads(call(["ip", "-json", "address", "show"])):
        for address in link["addr_info"]:
            if address["local"].startswith(net):
                raise MusterError(
                    f"{link['ifname']} already has {address['local']}, but a testbed needs all "
                    f"addresses that begin with {net}"
                    "\ntip: use another machine for the testbed"
                )
