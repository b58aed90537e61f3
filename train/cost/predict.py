"""Predict a step's seconds in modes with exact gradients: computing, and waiting for the network.

How it works: the sync is one collective for each bucket of gradients. If they are sent after the
backward pass, a step waits for all of them: C, their sum. If they are sent during that pass, of B
seconds, a step waits max(last of the b buckets, C - B (b - 1) / b): the first bucket is ready after
a b-th of the pass, the last one at its end (the schedule of S. Li et al., "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training", VLDB 2020). Packing and averaging are not
counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from train.cost.link_fit import Link, load
from train.cost.measured_steps import Steps
from train.report.data.reader import OVERLAPPED

# The collectives of each mode; zero1 sends the second half, the parameters, after the step.
MODES = {
    "single": (),
    "gather_scatter": ("gather", "scatter"),
    **dict.fromkeys(("all_reduce", "ddp", "accelerate", "zero1"), ("all_reduce",)),
}


@dataclass(frozen=True)
class Prediction:
    """One step; only `hidden_s` has the time that overlaps the backward pass."""

    computing_s: float
    latency_s: float = 0.0
    bandwidth_s: float = 0.0
    hidden_s: float = 0.0

    @property
    def step_s(self) -> float:
        return self.computing_s + self.latency_s + self.bandwidth_s


def predict(
    mode: str, workers: int, steps: Steps, links: Mapping[str, Link], *, overlaps: bool
) -> Prediction:
    """One step of `mode`; `overlaps`: it sends during the backward pass, as ddp always does.

    gather_scatter then sends the mean of one bucket while it receives the next.
    """
    if workers == 1:
        return Prediction(steps.computing_s)
    parts = [_bucket(mode, size, workers, links, MODES[mode]) for size in steps.buckets_bytes]
    flags = links[MODES[mode][0]].shares_s(load(MODES[mode][0], 0, workers)[0], 0)[0]
    if not (overlaps or mode in OVERLAPPED):
        latency_s, bandwidth_s = (sum(one) for one in zip(*parts, strict=True))
        return Prediction(steps.computing_s, latency_s + flags, bandwidth_s)
    if mode == "gather_scatter":  # up, and the last one down again
        last = parts[-1]
        parts = [_bucket(mode, one, workers, links, ("gather",)) for one in steps.buckets_bytes]
        parts[-1] = last
    latency_s, bandwidth_s = (sum(one) for one in zip(*parts, strict=True))
    whole_s, during = latency_s + bandwidth_s, 0.5 if mode == "zero1" else 1.0
    hideable_s = steps.backward_s * (len(parts) - 1) / len(parts)
    hidden_s = during * whole_s - max(during * sum(parts[-1]), during * whole_s - hideable_s)
    shown = 1 - hidden_s / whole_s if whole_s else 1.0
    return Prediction(steps.computing_s, latency_s * shown + flags, bandwidth_s * shown, hidden_s)


def _bucket(
    mode: str, size: float, workers: int, links: Mapping[str, Link], operations: tuple[str, ...]
) -> tuple[float, float]:
    """Seconds of latency and of bandwidth of one bucket; gather has a part of each worker."""
    total = size * workers if mode == "gather_scatter" else size
    found = [links[one].shares_s(*load(one, total, workers)) for one in operations]
    return sum(one[0] for one in found), sum(one[1] for one in found)
