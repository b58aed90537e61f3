"""`--levels auto`: a few buckets go one way and the other, in turns; the faster way stays."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import torch.distributed as dist

from ...ranks import Ranks
from . import two_levels

BUCKETS, ROUNDS = 2, 2
OPERATIONS = {1: "all_reduce", 2: two_levels.OPERATION}  # as the ledger has them, by levels
Ways = Mapping[int, Callable[[torch.Tensor], "Started"]]  # by the number of levels


class Started(Protocol):
    """A collective that is under way."""

    def wait(self) -> object: ...


def fastest(ranks: Ranks, ways: Ways, bucket_bytes: int) -> tuple[int, str]:
    """The way that is fastest on the slowest rank, and what to say of it; the same on all ranks."""
    buckets = [torch.zeros(max(1, bucket_bytes // 4)) for _ in range(BUCKETS)]
    for start in ways.values():  # memory, and whatever is made at first use
        start(torch.zeros(len(ways))).wait()
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for levels, start in ways.items():
            ranks.barrier(ranks.device)
            began = time.perf_counter()
            for started in [start(bucket) for bucket in buckets]:
                started.wait()
            best[levels] = min(best[levels], time.perf_counter() - began)
            ranks.ledger.control[OPERATIONS[levels]] += sum(bucket.nbytes for bucket in buckets)
    slowest = torch.tensor(list(best.values()), dtype=torch.float64)
    seconds = dict(zip(ways, ranks.all_reduce(slowest, dist.ReduceOp.MAX).tolist(), strict=True))
    chosen = min(seconds, key=lambda levels: seconds[levels])
    tried = ", ".join(f"{levels}: {one:.4f} s" for levels, one in seconds.items())
    megabytes = sum(bucket.nbytes for bucket in buckets) / 1e6
    return chosen, f"levels auto: {chosen} is fastest here ({megabytes:.1f} MB with {tried})"
