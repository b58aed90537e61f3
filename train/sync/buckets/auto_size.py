"""`--bucket-mb auto`: the first steps try bucket sizes on this link; the fastest one stays."""

import time
from statistics import median
from typing import Literal

import torch
import torch.distributed as dist

from ..ranks import Ranks

TRIED_MB = (1.0, 4.0, 10.0, 25.0)
STEPS_EACH = 4  # the first of a size also makes its buckets, and does not count


class Chooser:
    """Says how large buckets are to be; told after each step, on all ranks alike."""

    def __init__(
        self, ranks: Ranks, bucket_mb: float | Literal["auto"] | None, default_mb: float
    ) -> None:
        """`bucket_mb`: as given; None: `default_mb`, the mode's own."""
        self._ranks = ranks
        self._left = list(TRIED_MB) if bucket_mb == "auto" and ranks.world_size > 1 else []
        self._seconds: list[float] = []
        self._medians: list[float] = []
        self._since: float | None = None
        self.messages = ""
        fixed = default_mb if bucket_mb is None or bucket_mb == "auto" else bucket_mb
        self.bucket_mb = self._left[0] if self._left else fixed

    def stepped(self) -> bool:
        """A step is over; whether buckets are to be of another size from now on."""
        if not self._left:
            return False
        now = time.perf_counter()
        if self._since is not None:
            self._seconds.append(now - self._since)
        self._since = now
        if len(self._seconds) < STEPS_EACH:
            return False
        self._medians.append(median(self._seconds[1:]))
        self._seconds.clear()
        self._left.pop(0)
        before = self.bucket_mb
        self.bucket_mb = self._left[0] if self._left else self._fastest()
        return self.bucket_mb != before

    def _fastest(self) -> float:
        slowest = torch.tensor(self._medians, dtype=torch.float64)
        seconds = self._ranks.all_reduce(slowest, dist.ReduceOp.MAX).tolist()
        best = TRIED_MB[seconds.index(min(seconds))]
        tried = ", ".join(
            f"{mb:g} MiB {one:.3f} s" for mb, one in zip(TRIED_MB, seconds, strict=True)
        )
        self.messages = f"bucket-mb auto: {best:g} MiB is fastest here (a step with {tried})"
        return best
