"""How fast and how right the network is: every collective, and every way between two nodes.

The columns are those of nccl-tests (doc/PERFORMANCE.md there). algbw is size / time; busbw is algbw
times a factor that makes it comparable with the speed of a link, however many ranks there are:

    all_reduce                              2 (n - 1) / n
    reduce_scatter all_gather gather scatter  (n - 1) / n
    broadcast reduce sendrecv                           1

As there, the size of what is gathered or scattered is that of all parts together. The time is that
of the slowest rank, over enough repetitions to fill a part of a second.
"""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from configs.errors import MusterError
from train.measure.pairings import rounds
from train.rendezvous import Peers

SIZES = (1024, 1024**2, 16 * 1024**2)
BUDGET_S = 0.25  # for all repetitions of one collective at one size
MOST = 50  # repetitions
PAIR_BUDGET_S = 0.1
PAIR_SIZES = (1024**2, 16 * 1024**2)
# Where a small message takes longer than this, a large one has nothing to add but time.
SLOW_S = 0.1
EVERY_RANK = 16  # up to so many ranks all are paired, else the first of each node

Collective = Callable[[torch.Tensor, list[torch.Tensor]], None]


def bus_factor(name: str, world_size: int) -> float:
    """What nccl-tests multiplies algbw with to get busbw."""
    n = world_size
    if name == "all_reduce":
        return 2 * (n - 1) / n
    if name in ("reduce_scatter", "all_gather", "gather", "scatter"):
        return (n - 1) / n
    if name in ("broadcast", "reduce", "sendrecv"):
        return 1.0
    raise ValueError(f"no bus bandwidth is defined for {name!r}")


def measure(peers: Peers, timeout_s: float) -> dict[str, Any]:
    """All of it; the same on every rank, but for what only rank 0 is told.

    Raises:
        MusterError: a rank does not take part; it is named.
    """
    world = peers.world
    if world.world_size == 1:
        return {"hosts": [world.host], "backend": "none", "pairs": [], "collectives": []}
    _all_are_here(timeout_s)
    places: list[Any] = [None] * world.world_size
    dist.all_gather_object(places, (world.host, world.node_rank))
    return {
        "hosts": [host for host, _ in places],
        "backend": dist.get_backend(),
        "pairs": _pairs(world.rank, [node for _, node in places], peers.device),
        "collectives": [
            _collective(name, size, world.rank, world.world_size, peers.device)
            for name in ("broadcast", "gather", "scatter", "all_gather", "all_reduce")
            for size in SIZES
        ],
    }


def _all_are_here(timeout_s: float) -> None:
    group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    try:
        dist.monitored_barrier(group, timeout=timedelta(seconds=timeout_s), wait_all_ranks=True)
    except RuntimeError as error:
        raise MusterError(f"not all workers take part: {' '.join(str(error).split())}") from None


def _collective(
    name: str, size: int, rank: int, world_size: int, device: torch.device
) -> dict[str, Any]:
    parted = name in ("gather", "scatter", "all_gather")
    count = size // 4 // (world_size if parted else 1)
    total_bytes = count * 4 * (world_size if parted else 1)
    wrong = _wrong(name, count, rank, world_size, device)
    whole, parts = _buffers(name, count, rank, world_size, device)
    run = _call(name, rank)
    run(whole, parts)
    first_s = _timed(lambda: run(whole, parts), 1, device)
    often = max(1, min(MOST, int(BUDGET_S / first_s)))
    seconds = _timed(lambda: run(whole, parts), often, device)
    algbw = total_bytes / seconds / 1e9
    return {
        "name": name,
        "bytes": total_bytes,
        "count": count,
        "type": "float",
        "redop": "sum" if name == "all_reduce" else "none",
        "time_us": seconds * 1e6,
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * bus_factor(name, world_size),
        "wrong": wrong,
    }


def _buffers(
    name: str, count: int, rank: int, world_size: int, device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """This rank's own part, and the parts of all where this rank has them."""
    whole = _pattern(count, rank, device)
    holds = name == "all_gather" or (name in ("gather", "scatter") and rank == 0)
    if not holds:
        return whole, []
    if name == "scatter":
        return torch.zeros_like(whole), [_pattern(count, to, device) for to in range(world_size)]
    return whole, [torch.zeros_like(whole) for _ in range(world_size)]


def _call(name: str, rank: int) -> Collective:
    def run(whole: torch.Tensor, parts: list[torch.Tensor]) -> None:
        if name == "broadcast":
            dist.broadcast(whole, src=0)
        elif name == "gather":
            dist.gather(whole, parts if rank == 0 else None, dst=0)
        elif name == "scatter":
            dist.scatter(whole, parts if rank == 0 else None, src=0)
        elif name == "all_gather":
            dist.all_gather(parts, whole)
        else:
            dist.all_reduce(whole)

    return run


def _wrong(name: str, count: int, rank: int, world_size: int, device: torch.device) -> int:
    """How many values, on all ranks together, are not what they must be."""
    whole, parts = _buffers(name, count, rank, world_size, device)
    _call(name, rank)(whole, parts)
    own, every = _pattern(count, rank, device), range(world_size)
    pairs = {
        "broadcast": [(whole, _pattern(count, 0, device))],
        "scatter": [(whole, own)],
        "all_reduce": [
            (whole, torch.stack([_pattern(count, one, device) for one in every]).sum(0))
        ],
    }.get(name, [(part, _pattern(count, one, device)) for one, part in enumerate(parts)])
    found = torch.tensor(sum(int((got != want).sum()) for got, want in pairs), device=device)
    dist.all_reduce(found)
    return int(found)


def _pattern(count: int, rank: int, device: torch.device) -> torch.Tensor:
    """Small whole numbers, of which float sums are exact, unlike on every rank."""
    return (torch.arange(count, device=device) % 251 + rank).float()


def _timed(call: Callable[[], None], often: int, device: torch.device) -> float:
    """Seconds of one call, on the rank where it takes longest."""
    dist.barrier()
    began = time.perf_counter()
    for _ in range(often):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return _longest((time.perf_counter() - began) / often, device)


def _longest(seconds: float, device: torch.device) -> float:
    said = torch.tensor(seconds, device=device, dtype=torch.float64)
    dist.all_reduce(said, dist.ReduceOp.MAX)
    return float(said)


def _pairs(rank: int, nodes: list[int], device: torch.device) -> list[dict[str, Any]]:
    """One way after the other, where few nodes may share a core or a switch; both directions."""
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
    gathered: list[Any] = [None] * len(nodes)
    dist.all_gather_object(gathered, found)
    # the one that sends has it, too; the one that receives has waited for the last byte
    return sorted(
        (one for ways in gathered for one in ways), key=lambda one: (one["from"], one["to"])
    )


def _way(rank: int, source: int, target: int, device: torch.device) -> list[dict[str, Any]]:
    """Bytes a second from `source` to `target`, as the source sees it: until the last has come."""
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
    """Seconds for one load, until the other says that all have come."""
    began = time.perf_counter()
    for _ in range(often):
        if rank == source:
            dist.send(load, target)
        else:
            dist.recv(load, source)
    if rank == source:
        dist.recv(token, target)
        token.item()  # on a GPU: wait for it
    else:
        dist.send(token, source)
    return max((time.perf_counter() - began) / often, 1e-9)


def _agreed(rank: int, source: int, target: int, value: int, device: torch.device) -> int:
    """The source's value, on both."""
    said = torch.tensor(value, device=device)
    if rank == source:
        dist.send(said, target)
    else:
        dist.recv(said, source)
    return int(said)
