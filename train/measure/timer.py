"""Where the seconds of a step go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from train.measure.profile import span


class PhaseTimer:
    """Adds up wall-clock seconds per phase of one step.

    On a GPU a phase ends when its kernels have ended, not when they were queued: otherwise
    the next phase would be charged for them.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self.now()
        try:
            with span(name):
                yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - started

    def total_s(self) -> float:
        """Seconds since the timer was made, phases or not."""
        return self.now() - self._started

    def now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
