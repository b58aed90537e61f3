"""Seconds of a step in every mode on any number of workers, out of computing and of sync.

How it works: a step takes c + p n seconds of computing for the n samples of one worker (`fit`), and
what is left to wait for of its sync. The sync is one collective for each bucket of gradients, whose
latency and bandwidth `algorithms` counts. Sent after the backward pass, all of it is waited for:
C, their sum. Sent during that pass, of B seconds, what is waited for is
max(last of the b buckets, C - B (b - 1) / b): the first bucket is ready after a b-th of the pass,
the last one at its end (the schedule of S. Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 2020). Packing and averaging are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from train.cost.algorithms import Load, all_gather, exposed_s, gather, ring_all_reduce
from train.cost.fit import Bench, ComputeFit

OVERLAPPED = ("ddp", "accelerate", "ddp_fp16")
MODES = ("gather_scatter", "all_reduce", "ddp", "accelerate", "zero1")
AFTER = {"zero1": 0.5}  # the part of a mode's sync that comes after the optimizer's step
# What one could do instead, predicted only.
FURTHER = ("ddp_fp16",)
ROW_BYTES = 40  # loss, norm and three requests, which all ranks exchange in each step
FP16 = 0.5


@dataclass(frozen=True)
class Prediction:
    """One step; what overlaps the backward pass is not in `latency_s` and `bandwidth_s`."""

    mode: str
    workers: int
    samples: float  # of one worker
    compute_s: float
    latency_s: float
    bandwidth_s: float
    hidden_s: float = 0.0

    @property
    def sync_s(self) -> float:
        return self.latency_s + self.bandwidth_s

    @property
    def step_s(self) -> float:
        return self.compute_s + self.sync_s


def predict(
    mode: str,
    workers: int,
    samples: float,
    compute: ComputeFit,
    buckets_bytes: Sequence[int],
    bench: Bench,
    *,
    overlaps: bool = False,
) -> Prediction:
    """One step of `mode` in which each worker computes `samples`.

    `overlaps`: a hand-written mode sends buckets during the backward pass, as ddp does, and
    gather_scatter sends the mean of one while the next comes in.

    Raises:
        ValueError: the mode has no model.
    """
    compute_s = compute.seconds(samples)
    if workers == 1:
        return Prediction(mode, 1, samples, compute_s, 0.0, 0.0)
    parts = [_sync(mode, size, workers, bench) for size in buckets_bytes]
    if mode == "gather_scatter" and overlaps:  # up, and the last one down again
        parts = [gather(size, workers).shares_s(bench.of("gather").link) for size in buckets_bytes]
        last = gather(buckets_bytes[-1], workers).shares_s(bench.of("scatter").link)
        parts[-1] = (parts[-1][0] + last[0], parts[-1][1] + last[1])
    latency_s = sum(latency for latency, _ in parts)
    bandwidth_s = sum(bandwidth for _, bandwidth in parts)
    hidden_s = 0.0
    if (mode in OVERLAPPED or overlaps) and parts:
        whole_s, during = latency_s + bandwidth_s, 1 - AFTER.get(mode, 0.0)
        comm_s, last_s = during * whole_s, during * sum(parts[-1])
        hidden_s = comm_s - exposed_s(comm_s, last_s, compute.backward_s(samples), len(parts))
        latency_s *= 1 - hidden_s / whole_s if whole_s else 1.0
        bandwidth_s *= 1 - hidden_s / whole_s if whole_s else 1.0
    # All ranks also exchange their losses, and which parameters were used. Both are short; the
    # hand-written modes send them in one collective, DDP in two.
    loads = [(_flags(workers), "all_reduce")]
    if mode in OVERLAPPED:
        loads.append((all_gather(ROW_BYTES, workers), "all_gather"))
    latency_s += sum(load.latency_s(bench.of(name).link) for load, name in loads)
    return Prediction(mode, workers, samples, compute_s, latency_s, bandwidth_s, hidden_s)


def _flags(workers: int) -> Load:
    return ring_all_reduce(0, workers)


def _sync(mode: str, size: float, workers: int, bench: Bench) -> tuple[float, float]:
    """Seconds of latency and of bandwidth for one bucket."""
    ring = bench.of("all_reduce").link
    if mode == "gather_scatter":
        load = gather(size, workers)
        there, back = (load.shares_s(bench.of(name).link) for name in ("gather", "scatter"))
        return there[0] + back[0], there[1] + back[1]
    if mode in ("all_reduce", "ddp", "accelerate", "zero1"):  # zero1: in two halves
        load = ring_all_reduce(size, workers)
    elif mode == "ddp_fp16":
        load = ring_all_reduce(size * FP16, workers)
    else:
        raise ValueError(f"no model of {mode!r}")
    return load.shares_s(ring)
