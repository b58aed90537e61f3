"""One collective of one size is checked value by value, and timed, in nccl-tests' terms.

Its columns are those of doc/PERFORMANCE.md there. algbw is size / time; busbw is algbw times a
factor that makes it comparable with the speed of a link, however many ranks there are:

    all_reduce                              2 (n - 1) / n
    reduce_scatter all_gather gather scatter  (n - 1) / n
    broadcast reduce sendrecv                           1

As there, the size of what is gathered or scattered is that of all parts together; sendrecv is a
ring, in which each rank sends to the next one and receives from the one before. The time is that of
the slowest rank, over enough repetitions to fill a part of a second.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

PARTED = ("gather", "scatter", "all_gather", "reduce_scatter")
REDUCING = ("reduce_scatter", "all_reduce")
ITEM_BYTES = 4


@dataclass(frozen=True)
class Effort:
    """How long one collective of one size is repeated."""

    budget_s: float  # for all repetitions
    most: int  # repetitions
    rounds: int  # ranks meet before each; the fastest and the mean are told


THOROUGH = Effort(budget_s=0.5, most=1000, rounds=5)


@dataclass(frozen=True)
class Place:
    """Which of how many this worker is, and where its tensors are."""

    rank: int
    world_size: int
    device: torch.device


@dataclass(frozen=True)
class _Case:
    """A collective with its buffers: `run` may be repeated, `results` hold after the first."""

    run: Callable[[], None]
    results: list[tuple[Tensor, Callable[[], Tensor]]]  # what came, and what should have


def bus_factor(name: str, world_size: int) -> float:
    """What nccl-tests multiplies algbw with to get busbw."""
    n = world_size
    if name == "all_reduce":
        return 2 * (n - 1) / n
    if name in PARTED:
        return (n - 1) / n
    if name in ("broadcast", "reduce", "sendrecv"):
        return 1.0
    raise ValueError(f"no bus bandwidth is defined for {name!r}")


def measure(name: str, size_bytes: int, place: Place, effort: Effort) -> dict[str, Any]:
    """One row of the table, the same on every rank; all ranks call it alike."""
    parts = place.world_size if name in PARTED else 1
    count = max(1, size_bytes // ITEM_BYTES // parts)
    total_bytes = count * ITEM_BYTES * parts
    case = _CASES[name](count, place)
    case.run()
    wrong = torch.tensor(
        sum(int((came != expected()).sum()) for came, expected in case.results),
        device=place.device,
    )
    dist.all_reduce(wrong)
    first_s = _timed(case.run, 1, place.device)
    often = max(1, min(effort.most, int(effort.budget_s / first_s)) // effort.rounds)
    seconds = [_timed(case.run, often, place.device) for _ in range(effort.rounds)]
    algbw = total_bytes / fmean(seconds) / 1e9
    return {
        "name": name,
        "bytes": total_bytes,
        "count": count,
        "type": "float",
        "redop": "sum" if name in REDUCING else "none",
        "time_us": fmean(seconds) * 1e6,
        "time_us_min": min(seconds) * 1e6,
        "repetitions": often * effort.rounds,
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * bus_factor(name, place.world_size),
        "wrong": int(wrong),
    }


def longest(seconds: float, device: torch.device) -> float:
    """What the slowest rank says."""
    slowest = torch.tensor(seconds, device=device, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def _timed(call: Callable[[], None], often: int, device: torch.device) -> float:
    """Seconds of one call, on the rank where it takes longest."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(often):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return longest((time.perf_counter() - began) / often, device)


def _pattern(count: int, of_rank: int, device: torch.device) -> Tensor:
    """Small whole numbers, of which float sums are exact, unlike on every rank."""
    return (torch.arange(count, device=device) % 251 + of_rank).float()


def _sendrecv(count: int, place: Place) -> _Case:
    after, before = (place.rank + 1) % place.world_size, (place.rank - 1) % place.world_size
    own = _pattern(count, place.rank, place.device)
    came = torch.zeros_like(own)

    def run() -> None:
        both = [dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, came, before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return _Case(run, [(came, lambda: _pattern(count, before, place.device))])


def _broadcast(count: int, place: Place) -> _Case:
    whole = _pattern(count, place.rank, place.device)
    expected = [(whole, lambda: _pattern(count, 0, place.device))]
    return _Case(lambda: dist.broadcast(whole, src=0), expected)


def _gather(count: int, place: Place) -> _Case:
    own = _pattern(count, place.rank, place.device)
    if place.rank != 0:
        return _Case(lambda: dist.gather(own, None, dst=0), [])
    parts = [torch.zeros_like(own) for _ in range(place.world_size)]
    return _Case(lambda: dist.gather(own, parts, dst=0), _each(parts, count, place))


def _scatter(count: int, place: Place) -> _Case:
    came = torch.zeros(count, device=place.device)
    every = range(place.world_size) if place.rank == 0 else ()
    parts = [_pattern(count, rank, place.device) for rank in every]
    expected = [(came, lambda: _pattern(count, place.rank, place.device))]
    return _Case(lambda: dist.scatter(came, parts or None, src=0), expected)


def _all_gather(count: int, place: Place) -> _Case:
    own = _pattern(count, place.rank, place.device)
    whole = own.new_zeros(count * place.world_size)
    return _Case(
        lambda: dist.all_gather_single(whole, own), _each(whole.split(count), count, place)
    )


def _reduce_scatter(count: int, place: Place) -> _Case:
    """Part i of every rank is the pattern of that rank, plus i."""
    own = _pattern(count, place.rank, place.device)
    whole = torch.cat([own + part for part in range(place.world_size)])
    came = torch.zeros_like(own)
    return _Case(
        lambda: dist.reduce_scatter_single(came, whole),
        [(came, lambda: _sum(count, place) + place.rank * place.world_size)],
    )


def _all_reduce(count: int, place: Place) -> _Case:
    whole = _pattern(count, place.rank, place.device)
    return _Case(lambda: dist.all_reduce(whole), [(whole, lambda: _sum(count, place))])


def _sum(count: int, place: Place) -> Tensor:
    total = torch.zeros(count, device=place.device)
    for rank in range(place.world_size):
        total += _pattern(count, rank, place.device)
    return total


def _each(
    parts: Sequence[Tensor], count: int, place: Place
) -> list[tuple[Tensor, Callable[[], Tensor]]]:
    return [
        (part, lambda rank=rank: _pattern(count, rank, place.device))  # type: ignore[misc]
        for rank, part in enumerate(parts)
    ]


_CASES: dict[str, Callable[[int, Place], _Case]] = {
    "sendrecv": _sendrecv,
    "broadcast": _broadcast,
    "gather": _gather,
    "scatter": _scatter,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
}
