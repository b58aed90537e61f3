"""Measure the network and check its data: every collective, and every pair of nodes."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster.errors import MusterError
from train.benchmarks import collectives
from train.benchmarks.collectives import Effort
from train.distributed import environment
from train.distributed.agreement import gather, gloo_group
from train.distributed.rendezvous import Peers

SIZES = (1024, 1024**2, 16 * 1024**2)
MOST = 50  # repetitions
EFFORT = Effort(budget_s=0.25, most=MOST, rounds=1)
PAIR_BUDGET_S = 0.1
PAIR_SIZES = (1024**2, 16 * 1024**2)
# If a small message takes longer than this, a large one would only take more time.
SLOW_S = 0.1
ALONE = 16  # up to this many ranks, one pair at a time: no other traffic
EVERY_RANK = 16  # up to this many ranks all are paired, else the first of each node


def measure(peers: Peers, timeout_s: float) -> dict[str, Any]:
    """All measurements; the same on every rank, except for those that only rank 0 gets.

    Raises:
        MusterError: a rank does not take part; the message names it.
    """
    world = peers.world
    if world.world_size == 1:
        return {"hosts": [world.host], "backend": "none", "pairs": [], "collectives": []}
    all_are_here(timeout_s)
    results = where(peers)
    return {
        **results,
        "pairs": _pairs(world.rank, results["nodes"], peers.device),
        "collectives": [
            collectives.measure(name, size, peers, EFFORT)
            for name in ("broadcast", "gather", "scatter", "all_gather", "all_reduce")
            for size in SIZES
        ],
    }


def where(peers: Peers) -> dict[str, Any]:
    """Each rank's host and node, the backend, and each host's interface; the same on every rank."""
    world = peers.world
    places = gather(world.world_size, (world.host, world.node_rank, environment.link()))
    return {
        "hosts": [host for host, _, _ in places],
        "nodes": [node for _, node, _ in places],
        "backend": dist.get_backend(),
        "links": {host: link for host, _, link in places},
    }


def all_are_here(timeout_s: float) -> None:
    """Wait until all ranks have called this.

    Raises:
        MusterError: a rank does not; the message names it.
    """
    try:
        dist.monitored_barrier(
            gloo_group(), timeout=timedelta(seconds=timeout_s), wait_all_ranks=True
        )
    except RuntimeError as error:
        raise MusterError(f"not all workers take part: {' '.join(str(error).split())}") from None


def rounds(ranks: Sequence[int], alone: int = ALONE) -> Iterator[list[tuple[int, int]]]:
    """Every pair of `ranks` once; no rank twice in a round.

    The circle method: the first stays, the others move around it.
    """
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    half = len(places) // 2
    for _ in range(len(places) - 1):
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        pairs = [(one, other) for one, other in facing if one is not None and other is not None]
        yield from [pairs] if len(ranks) > alone else ([pair] for pair in pairs)
        places = [places[0], places[-1], *places[1:-1]]


def _pairs(rank: int, nodes: list[int], device: torch.device) -> list[dict[str, Any]]:
    """Both directions, one after the other, since nodes may share a core or a switch."""
    chosen = list(range(len(nodes)))
    if len(nodes) > EVERY_RANK:
        chosen = [nodes.index(node) for node in dict.fromkeys(nodes)]
    found: list[dict[str, Any]] = []
    for together in rounds(chosen):
        apart = [(one, other) for one, other in together if nodes[one] != nodes[other]]
        for source, target in (*apart, *((other, one) for one, other in apart)):
            if rank in (source, target):
                found += _way(rank, source, target, device)
        dist.barrier()
    gathered = gather(len(nodes), found)
    # the sender has the result, too; the receiver has waited for the last byte
    return sorted(
        (one for ways in gathered for one in ways), key=lambda one: (one["from"], one["to"])
    )


def _way(rank: int, source: int, target: int, device: torch.device) -> list[dict[str, Any]]:
    """Bytes per second from `source` to `target`, measured by the source until the last arrived."""
    found = []
    token = torch.zeros(1, device=device)
    for size in PAIR_SIZES:
        load = torch.zeros(size // 4, device=device)
        seconds = _sent(rank, source, target, load, token, 1)
        often = max(1, min(MOST, int(PAIR_BUDGET_S / seconds)))
        often = _agreed(rank, source, target, often, device)
        seconds = _sent(rank, source, target, load, token, often)
        if rank == source:
            rate = size * 8 / seconds / 1e9
            found.append({"from": source, "to": target, "bytes": size, "gbit_s": rate})
        if _agreed(rank, source, target, int(seconds > SLOW_S), device):
            break
    return found


def _sent(
    rank: int, source: int, target: int, load: torch.Tensor, token: torch.Tensor, often: int
) -> float:
    """Seconds for one load, until the receiver confirms that everything has arrived."""
    began = time.perf_counter()
    for _ in range(often):
        if rank == source:
            dist.send(load, target)
        else:
            dist.recv(load, source)
    if rank == source:
        dist.recv(token, target)
        token.item()  # on a GPU, this waits for it
    else:
        dist.send(token, source)
    return max((time.perf_counter() - began) / often, 1e-9)


def _agreed(rank: int, source: int, target: int, value: int, device: torch.device) -> int:
    """The source's value, on both ranks."""
    message = torch.tensor(value, device=device)
    if rank == source:
        dist.send(message, target)
    else:
        dist.recv(message, source)
    return int(message)
