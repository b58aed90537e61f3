"""Seconds of a step in the modes that send exact gradients: computing, and what is waited for.

What a run computes and sends is taken from its records.

How it works: the sync is one collective for each bucket of gradients. Sent after the backward pass,
all of it is waited for: C, their sum. Sent during that pass, of B seconds, what is waited for is
max(last of the b buckets, C - B (b - 1) / b): the first bucket is ready after a b-th of the pass,
the last one at its end (the schedule of S. Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 2020). Packing and averaging are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from train.cost.link_fit import Link, load
from train.report.data.reader import OVERLAPPED, Run

COMPUTING = ("data_s", "forward_s", "backward_s", "optimizer_s")
NEEDED = (*COMPUTING, "samples", "sync_s", "step_s", "payload_bytes")


@dataclass(frozen=True)
class Steps:
    """The mean of a run's full batches except the first, for the rank that computes longest."""

    computing_s: float  # all but the sync
    backward_s: float  # a part of it
    buckets_bytes: tuple[int, ...]  # of each collective of gradients
    is_mixed: bool  # it communicates during its backward pass, which may slow that down


def read_steps(run: Run, mode: str, workers: int) -> Steps | None:
    """The steps of a run; None if too little is recorded."""
    table = pd.DataFrame(run.rows("step"), columns=["step", "rank", *NEEDED])
    steps = table.apply(pd.to_numeric, errors="coerce").dropna()
    steps["own_s"] = steps[list(COMPUTING)].sum(axis=1)
    # the time outside all phases is the same on all ranks, except for waiting
    steps["rest_s"] = steps["step_s"] - steps["own_s"] - steps["sync_s"]
    common = steps[steps.groupby("step")["rank"].transform("size") == len(run.ranks)]
    is_full = common["samples"] == common["samples"].max()
    full = common[is_full & (common["step"] > common["step"].min())]
    if full.empty or len(run.ranks) < workers:
        return None
    of_step = full.groupby("step")
    slowest = full.loc[of_step["own_s"].idxmax()].set_index("step")
    computing_s = slowest["own_s"] + of_step["rest_s"].min().clip(lower=0)
    payload_bytes = full[full["rank"] == min(run.ranks)]["payload_bytes"].iloc[-1]
    return Steps(
        computing_s=computing_s.mean(),
        backward_s=slowest["backward_s"].mean(),
        buckets_bytes=_buckets(run, mode, workers, payload_bytes),
        is_mixed=workers > 1 and (mode in OVERLAPPED or run.config.get("overlap") is True),
    )


def _buckets(run: Run, mode: str, workers: int, payload_bytes: float) -> tuple[int, ...]:
    """Bytes of each collective of gradients as recorded, else all in one."""
    recorded = [row["collectives"] for row in run.first_rank("collectives") if row["collectives"]]
    for operations in (("all_reduce", "reduce_scatter", "all_to_all"), ("gather",)):
        found = tuple(int(one[3]) for one in (recorded or [[]])[-1] if one[0] in operations)
        if found:
            return found
    # how often a rank passes the gradients' bytes to collectives; zero1 its part once more
    times = {"gather_scatter": 2.0, "zero1": 1 + 1 / workers}.get(mode, 1.0)
    return (int(payload_bytes / times),)


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
    overlaps = overlaps or mode in OVERLAPPED
    parts = [_bucket(mode, size, workers, links, MODES[mode]) for size in steps.buckets_bytes]
    if overlaps and mode == "gather_scatter":  # up, and the last one down again
        first = steps.buckets_bytes[:-1]
        parts[:-1] = [_bucket(mode, size, workers, links, ("gather",)) for size in first]
    latency_s, bandwidth_s = (sum(one) for one in zip(*parts, strict=True))
    flags_s = links[MODES[mode][0]].shares_s(load(MODES[mode][0], 0, workers)[0], 0)[0]
    whole_s, during = latency_s + bandwidth_s, 0.5 if mode == "zero1" else 1.0
    hideable_s = steps.backward_s * (len(parts) - 1) / len(parts) if overlaps else 0.0
    hidden_s = during * whole_s - max(during * sum(parts[-1]), during * whole_s - hideable_s)
    shown = 1 - hidden_s / whole_s if whole_s else 1.0
    return Prediction(steps.computing_s, latency_s * shown + flags_s, bandwidth_s * shown, hidden_s)


def _bucket(
    mode: str, size: float, workers: int, links: Mapping[str, Link], operations: tuple[str, ...]
) -> tuple[float, float]:
    """Seconds of latency and of bandwidth of one bucket; gather has a part of each worker."""
    total = size * workers if mode == "gather_scatter" else size
    found = [links[one].shares_s(*load(one, total, workers)) for one in operations]
    return sum(one[0] for one in found), sum(one[1] for one in found)
