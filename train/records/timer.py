"""Measure the phases of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .profile import span

Mark = float | torch.cuda.Event


class PhaseTimer:
    """Adds up seconds per phase of one step.

    On a GPU it uses events in its stream: a phase ends when its kernels have ended, not when they
    were queued. The host waits for them only when the seconds are read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._phases: list[tuple[str, Mark, Mark]] = []
        self._started = self._mark()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = self._mark()
        try:
            with span(name):
                yield
        finally:
            self._phases.append((name, started, self._mark()))

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each phase so far."""
        found: dict[str, float] = {}
        for name, started, ended in self._phases:
            found[name] = found.get(name, 0.0) + _between(started, ended)
        return found

    def total_s(self) -> float:
        """Seconds since the timer was made, inside and outside of phases."""
        return _between(self._started, self._mark())

    def _mark(self) -> Mark:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(started: Mark, ended: Mark) -> float:
    if isinstance(started, float) and isinstance(ended, float):
        return ended - started
    assert not isinstance(started, float) and not isinstance(ended, float)
    ended.synchronize()  # and so all earlier events in its stream
    milliseconds: float = started.elapsed_time(ended)
    return milliseconds / 1e3
