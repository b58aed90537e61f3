"""Which ranks share a node, and a group of each node's.

A node is what has a kernel and a host name of its own, whoever started its workers and in whatever
order: what ranks send each other there never comes to its link. Two agents on one host are one
node, then; two namespaces of one kernel, each with a name, are two.
"""

import hashlib
import socket
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from ...ranks import Ranks

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def find(ranks: Ranks) -> list[list[int]]:
    """The ranks of each node in rising order, nodes in the order of their first ranks.

    All ranks call it, and get the same.
    """
    own = _own_number() if ranks.node is None else ranks.node
    numbers = ranks.all_gather(torch.tensor([own], device=ranks.device)).flatten().tolist()
    return [
        [rank for rank, other in enumerate(numbers) if other == number]
        for number in dict.fromkeys(numbers)
    ]


def _own_number() -> int:
    """The same on each rank of a node, 63 bits."""
    boot = BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""
    name = f"{boot} {socket.gethostname()}".encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8]) >> 1


def layered(nodes: Sequence[Sequence[int]]) -> bool:
    """Whether there are several nodes, and several workers on one of them."""
    return len(nodes) > 1 and max(map(len, nodes)) > 1


def one_of(partition: Sequence[Sequence[int]], timeout_s: float) -> dist.ProcessGroup | None:
    """A new group for each list of ranks; returned is this rank's, None where it is in none.

    All ranks call it: torch names a group by how many a rank has made before.
    """
    own: dist.ProcessGroup | None
    own, _ = dist.new_subgroups_by_enumeration(
        [list(members) for members in partition], timeout=timedelta(seconds=timeout_s)
    )
    return own


def inside(ranks: Ranks, nodes: Sequence[Sequence[int]], timeout_s: float) -> Ranks:
    """The ranks of this node as if there were no others; they keep the account they have."""
    group = one_of(nodes, timeout_s)
    members = next(one for one in nodes if ranks.rank in one)
    place, workers = members.index(ranks.rank), len(members)
    return replace(ranks, rank=place, world_size=workers, group=group)
