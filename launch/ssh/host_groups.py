"""Hosts are dealt out: runs that go on at the same time have hosts of their own."""

from collections.abc import Sequence
from pathlib import Path

from launch.spec import NodeSpec
from muster.errors import UsageError
from muster.writing import write_text

Group = Sequence[NodeSpec]


def groups(hosts: Sequence[NodeSpec], nodes: int, at_once: int) -> list[Group]:
    """`at_once` groups of `nodes` hosts, in their order.

    Raises:
        UsageError: there are not so many hosts.
    """
    if at_once * nodes > len(hosts):
        named = ", ".join(spec.name for spec in hosts[:8]) + (", ..." if len(hosts) > 8 else "")
        can = len(hosts) // nodes
        instead = f"use --at-once {can}" if can else f"use --nodes {len(hosts)}"
        raise UsageError(
            f"--at-once {at_once} of {nodes} {'node' if nodes == 1 else 'nodes'} each needs "
            f"{at_once * nodes} hosts, but there are {len(hosts)} ({named}), enough for {can} at "
            f"a time; {instead}"
        )
    return [hosts[place * nodes : (place + 1) * nodes] for place in range(at_once)]


def write_hosts(group: Group, path: Path) -> None:
    """Write a hosts file of these, with all that is known of them."""
    lines = []
    for spec in group:
        address = f" address={spec.address}" if spec.address else ""
        lines.append(f"{spec.name} slots={spec.nproc}{address}\n")
    write_text(path, "".join(lines))
