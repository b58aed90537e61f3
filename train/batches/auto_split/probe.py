"""Measure what a rank's part of a step costs without communication, in seconds and in bytes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import TypeVar

import psutil
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...model import rng
from ...sync import batchnorm
from .step_cost import Cost, fit, memory_limit

Batch = TypeVar("Batch")

REPEATS = 3
# Long beside the time slices of what may share a core: its mean is what a step will take.
BUDGET_S = 0.8
MOST = 30
RESET_PEAK = Path("/proc/self/clear_refs")  # writing 5 resets VmHWM, see proc(5)


@dataclass(frozen=True)
class Probe:
    """What one rank has found of itself."""

    cost: Cost  # samples fetched, forward, backward and update
    forward: Cost  # the part of it that no communication disturbs, in any mode
    limit: int  # samples that fit into memory at a time; 0: no limit in sight
    pass_samples: float = 0.0  # as long as a pass takes whatever is in it, in samples


def measure(
    model: nn.Module,
    optimizer: Optimizer,
    fetch: Callable[[Sequence[int]], Batch],
    loss_of: Callable[[Batch], Tensor],
    *,
    size: int,
    share: int,
    sharers: int,
    lengths: Sequence[int] = (),
) -> Probe:
    """Time a step over a quarter, a half and all of an even `share`; nothing is changed by it.

    `fetch` makes a batch of the samples at these positions of a set of `size`, `loss_of` is the
    forward pass. `model` has no sync mode's wrapper yet, so that no rank waits for another.
    `optimizer` is one to throw away. `sharers`: the workers of this host, which share its memory.
    Where batches are cut by `lengths`, a sample means the tokens that one has at the mean.
    """
    sizes = probed_sizes(share, least=2 if batchnorm.has_any(model) else 1)
    buffers = [
        (module._buffers, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    generators = rng.capture()
    device = next(model.parameters()).device
    model.train()
    totals: list[float] = []
    forwards: list[float] = []
    peaks: list[float] = []
    amounts: list[float] = []
    for number in sizes:
        # from all over the set, since what lies together may be alike
        chosen = [at * size // number for at in range(number)]
        widest = max(lengths[at] for at in chosen) / fmean(lengths) if lengths else 1.0
        amounts.append(number * widest)
        times: list[tuple[float, float]] = []
        for turn in range(MOST + 1):
            if turn > REPEATS and sum(one for _, one in times) > BUDGET_S:
                break
            _reset_peak(device)
            started = _now()
            batch = fetch(chosen)
            fetched = _now()
            loss = loss_of(batch)
            computed = _now()
            loss.backward()
            if turn:  # the first one warms up
                times.append((computed - fetched, _now() - started))
        peaks.append(_peak_bytes(device))
        forwards.append(fmean(one for one, _ in times))
        totals.append(fmean(one for _, one in times))
    line = fit(amounts, totals)
    cost = Cost(line.alpha_s + _update_s(model, optimizer), line.beta_s)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for place, name, buffer, was in buffers:
            place[name] = buffer.copy_(was)  # a cache may have given way to a larger one
    rng.restore(generators)
    free = _free_bytes(device) / (1 if device.type == "cuda" else sharers) + peaks[-1]
    limit = memory_limit(amounts, peaks, free)
    return Probe(cost, fit(amounts, forwards), limit, line.alpha_s / line.beta_s)


def probed_sizes(share: int, least: int) -> list[int]:
    """The batch sizes to time: two or three, none below `least`.

    A BatchNorm refuses a batch of one sample where that is one value a channel.
    """
    sizes = {max(least, share // 4), max(least, share // 2), max(least, share)}
    return sorted(sizes if len(sizes) > 1 else {*sizes, least + 1})


def _update_s(model: nn.Module, optimizer: Optimizer) -> float:
    """Seconds of one update; it changes nothing, since gradients and learning rate are zero."""
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for param in model.parameters():
        if param.grad is not None:
            param.grad.zero_()
    times = []
    for _ in range(REPEATS + 1):
        started = _now()
        optimizer.step()
        times.append(_now() - started)
    return median(times[1:])  # the first one makes the optimizer's state


def _now() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif RESET_PEAK.exists():
        RESET_PEAK.write_text("5")


def _peak_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if not status.exists():  # no Linux: no limit will be in sight
        return float(psutil.Process().memory_info().rss)
    (line,) = (one for one in status.read_text().splitlines() if one.startswith("VmHWM"))
    return float(line.split()[1]) * 1024


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(psutil.virtual_memory().available)
