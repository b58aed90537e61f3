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
MAX_REPETITIONS = 50
EFFORT = Effort(budget_s=0.25, most=MAX_REPETITIONS, rounds=1)
PAIR_BUDGET_S = 0.1
PAIR_SIZES = (1024**2, 16 * 1024**2)
# If a small message takes longer than this, a large one would only take more time.
SLOW_S = 0.1
MAX_SEQUENTIAL_RANKS = 16  # up to this many, pairs are measured one by one, without other traffic
MAX_PAIRED_RANKS = 16  # with more ranks, only the first rank of each node is paired


def measure(peers: Peers, timeout_s: float) -> dict[str, Any]:
    """Make all measurements; the result is the same on every rank.

    Raises:
        MusterError: a rank does not take part; the message names it.
    """
    world = peers.world
    if world.world_size == 1:
        return {"hosts": [world.host], "backend": "none", "pairs": [], "collectives": []}
    require_all_ranks(timeout_s)
    results = placement(peers)
    return {
        **results,
        "pairs": _measure_pairs(world.rank, results["nodes"], peers.device),
        "collectives": [
            collectives.measure(name, size, peers, EFFORT)
            for name in ("broadcast", "gather", "scatter", "all_gather", "all_reduce")
            for size in SIZES
        ],
    }


def placement(peers: Peers) -> dict[str, Any]:
    """Each rank's host and node, the backend, and each host's interface.

    All ranks must call it, and get the same result.
    """
    world = peers.world
    places = gather(world.world_size, (world.host, world.node_rank, environment.link()))
    return {
        "hosts": [host for host, _, _ in places],
        "nodes": [node for _, node, _ in places],
        "backend": dist.get_backend(),
        "links": {host: link for host, _, link in places},
    }


def require_all_ranks(timeout_s: float) -> None:
    """Wait until all ranks have called this.

    Raises:
        MusterError: a rank does not; the message names it.
    """
    try:
        dist.monitored_barrier(
            gloo_group(), timeout=timedelta(seconds=timeout_s), wait_all_ranks=True
        )
    except RuntimeError as error:
        raise MusterError(f"not all workers took part: {' '.join(str(error).split())}") from None


def rounds(
    ranks: Sequence[int], max_sequential: int = MAX_SEQUENTIAL_RANKS
) -> Iterator[list[tuple[int, int]]]:
    """Rounds of pairs: every pair of `ranks` once, and no rank twice in a round.

    With up to `max_sequential` ranks a round is one pair. This is the circle method: the first rank
    stays, and the others move around it.
    """
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    half = len(places) // 2
    for _ in range(len(places) - 1):
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        pairs = [(a, b) for a, b in facing if a is not None and b is not None]
        yield from [pairs] if len(ranks) > max_sequential else ([pair] for pair in pairs)
        places = [places[0], places[-1], *places[1:-1]]


def _measure_pairs(rank: int, nodes: list[int], device: torch.device) -> list[dict[str, Any]]:
    """The speed between every two nodes; both directions in turn, since nodes may share a core."""
    chosen = list(range(len(nodes)))
    if len(nodes) > MAX_PAIRED_RANKS:
        chosen = [nodes.index(node) for node in dict.fromkeys(nodes)]
    rows: list[dict[str, Any]] = []
    for pairs in rounds(chosen):
        remote = [(a, b) for a, b in pairs if nodes[a] != nodes[b]]
        for source, target in (*remote, *((b, a) for a, b in remote)):
            if rank in (source, target):
                rows += _measure_direction(rank, source, target, device)
        dist.barrier()
    gathered = gather(len(nodes), rows)
    # only the source has the result; it waited until the target confirmed the last byte
    return sorted(
        (row for part in gathered for row in part), key=lambda row: (row["from"], row["to"])
    )


def _measure_direction(
    rank: int, source: int, target: int, device: torch.device
) -> list[dict[str, Any]]:
    """The speed from `source` to `target` for each size, on the source; [] on the target."""
    rows = []
    token = torch.zeros(1, device=device)
    for size in PAIR_SIZES:
        load = torch.zeros(size // 4, device=device)
        seconds = _time_sends(rank, source, target, load, token, 1)
        repetitions = max(1, min(MAX_REPETITIONS, int(PAIR_BUDGET_S / seconds)))
        repetitions = _value_of_source(rank, source, target, repetitions, device)
        seconds = _time_sends(rank, source, target, load, token, repetitions)
        if rank == source:
            rate = size * 8 / seconds / 1e9
            rows.append({"from": source, "to": target, "bytes": size, "gbit_s": rate})
        if _value_of_source(rank, source, target, int(seconds > SLOW_S), device):
            break
    return rows


def _time_sends(
    rank: int, source: int, target: int, load: torch.Tensor, token: torch.Tensor, repetitions: int
) -> float:
    """Seconds for one load, until the receiver confirms that everything has arrived."""
    began = time.perf_counter()
    for _ in range(repetitions):
        if rank == source:
            dist.send(load, target)
        else:
            dist.recv(load, source)
    if rank == source:
        dist.recv(token, target)
        token.item()  # on a GPU, this waits for it
    else:
        dist.send(token, source)
    return max((time.perf_counter() - began) / repetitions, 1e-9)


def _value_of_source(rank: int, source: int, target: int, value: int, device: torch.device) -> int:
    """The source's value, on both ranks."""
    message = torch.tensor(value, device=device)
    if rank == source:
        dist.send(message, target)
    else:
        dist.recv(message, source)
    return int(message)
