"""Check one collective of one size value by value, and time it, in the terms of nccl-tests.

Its columns are explained in doc/PERFORMANCE.md of nccl-tests. algbw is size / time; busbw is algbw
times a factor that makes it comparable with a link's speed, for any number of ranks:

    all_reduce                              2 (n - 1) / n
    reduce_scatter all_gather gather scatter  (n - 1) / n
    broadcast sendrecv                                  1

As in nccl-tests, the size of a gather or scatter is the size of all parts together. sendrecv is a
ring, in which each rank sends to the next one and receives from the one before. The time is the
slowest rank's, over enough repetitions to fill a part of a second.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from train.distributed.rendezvous import Peers

# The second name is for torch before 2.13.
ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

SPLIT_COLLECTIVES = ("gather", "scatter", "all_gather", "reduce_scatter")
REDUCTIONS = ("reduce_scatter", "all_reduce")
ITEM_BYTES = 4


@dataclass(frozen=True)
class Effort:
    """How often one collective of one size is repeated."""

    budget_s: float  # for all repetitions
    most: int  # number of repetitions
    rounds: int  # each begins with a barrier; the fastest and the mean are reported


THOROUGH = Effort(budget_s=0.5, most=1000, rounds=5)


@dataclass(frozen=True)
class _Case:
    """A collective with its buffers; `run` may be repeated, `results` are of its first call."""

    run: Callable[[], object]
    results: list[tuple[Tensor, Callable[[], Tensor]]]  # received tensors, expected values


def bus_factor(name: str, world_size: int) -> float:
    """The factor of nccl-tests from algbw to busbw."""
    n = world_size
    if name == "all_reduce":
        return 2 * (n - 1) / n
    return (n - 1) / n if name in SPLIT_COLLECTIVES else 1.0


def measure(name: str, size_bytes: int, peers: Peers, effort: Effort) -> dict[str, Any]:
    """One row of the table, the same on every rank; all ranks must call it with the same values."""
    world_size = peers.world.world_size
    parts = world_size if name in SPLIT_COLLECTIVES else 1
    count = max(1, size_bytes // ITEM_BYTES // parts)
    total_bytes = count * ITEM_BYTES * parts
    case = _build_case(name, count, peers)
    case.run()
    wrong = torch.tensor(
        sum(int((received != expected()).sum()) for received, expected in case.results),
        device=peers.device,
    )
    dist.all_reduce(wrong)
    first_s = _timed(case.run, 1, peers.device)
    repetitions = max(1, min(effort.most, int(effort.budget_s / first_s)) // effort.rounds)
    seconds = [_timed(case.run, repetitions, peers.device) for _ in range(effort.rounds)]
    algbw = total_bytes / fmean(seconds) / 1e9
    return {
        "name": name,
        "bytes": total_bytes,
        "count": count,
        "type": "float",
        "redop": "sum" if name in REDUCTIONS else "none",
        "time_us": fmean(seconds) * 1e6,
        "time_us_min": min(seconds) * 1e6,
        "repetitions": repetitions * effort.rounds,
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * bus_factor(name, world_size),
        "wrong": int(wrong),
    }


def _timed(call: Callable[[], object], repetitions: int, device: torch.device) -> float:
    """Seconds of one call, on the rank where it takes longest."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repetitions):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - began) / repetitions
    slowest = torch.tensor(seconds, device=device, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def _pattern(count: int, of_rank: int, device: torch.device) -> Tensor:
    """Small whole numbers, whose float sums are exact, different on every rank."""
    return (torch.arange(count, device=device) % 251 + of_rank).float()


def _build_case(name: str, count: int, peers: Peers) -> _Case:
    """The collective `name` with its buffers, of `count` floats for each rank or part."""
    rank = peers.world.rank
    size = peers.world.world_size
    local = _pattern(count, rank, peers.device)
    received = torch.zeros_like(local)

    def pattern_of(other: int) -> Callable[[], Tensor]:
        return lambda: _pattern(count, other, peers.device)

    def total() -> Tensor:
        return torch.stack([pattern_of(other)() for other in range(size)]).sum(0)

    match name:
        case "sendrecv":
            after = (rank + 1) % size
            before = (rank - 1) % size

            def run() -> None:
                both = [
                    dist.P2POp(dist.isend, local, after),
                    dist.P2POp(dist.irecv, received, before),
                ]
                for work in dist.batch_isend_irecv(both):
                    work.wait()

            return _Case(run, [(received, pattern_of(before))])
        case "broadcast":
            return _Case(lambda: dist.broadcast(local, src=0), [(local, pattern_of(0))])
        case "gather":
            parts = [torch.zeros_like(local) for _ in range(size)] if rank == 0 else []
            expected = [(part, pattern_of(other)) for other, part in enumerate(parts)]
            return _Case(lambda: dist.gather(local, parts or None, dst=0), expected)
        case "scatter":
            sent = [pattern_of(other)() for other in range(size)] if rank == 0 else None
            return _Case(
                lambda: dist.scatter(received, sent, src=0), [(received, pattern_of(rank))]
            )
        case "all_gather":
            gathered = local.new_zeros(count * size)
            parts = list(gathered.split(count))
            expected = [(part, pattern_of(other)) for other, part in enumerate(parts)]
            return _Case(lambda: ALL_GATHER(gathered, local), expected)
        case "reduce_scatter":  # part i of every rank is that rank's pattern plus i
            unreduced = torch.cat([local + part for part in range(size)])
            expected = [(received, lambda: total() + rank * size)]
            return _Case(lambda: REDUCE_SCATTER(received, unreduced), expected)
        case "all_reduce":
            return _Case(lambda: dist.all_reduce(local), [(local, total)])
    raise ValueError(f"there is no collective {name!r}")
