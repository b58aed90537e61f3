"""Which rank is slow, since when and in what, by the records of its steps.

Steps take all ranks equally long, for they wait for the slowest: what counts is a rank's own time,
which is its step without what it waits or sends.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from configs.settings.train import TrainConfig
from muster import json_lines, run_files

WINDOW = 5  # steps whose median is one figure
SLOW = 1.25  # times the median of the ranks, to be called slow
SHORT_S = 0.002  # what differs by less is nothing to look for
PHASES = ("data", "forward", "backward", "optimizer")
NEEDED = {"step", "comm_s", "overlapped_s", *(f"{phase}_s" for phase in PHASES)}
OVERLAPPING = ("ddp", "accelerate")  # whose backward pass holds what it waits for


def slow_rank(run_dir: Path, settings: TrainConfig) -> str | None:
    """`rank 3 is 1.4 times the median since step 200, in data`; None: no rank is slow."""
    overlapping = settings.sync in OVERLAPPING
    ranks = {
        rank: {
            int(one["step"]): _phases(one, overlapping)
            for one in json_lines.last(path)
            if one.get("kind") == "step" and one.keys() >= NEEDED
        }
        for rank, path in run_files.METRICS.by_number(run_dir).items()
    }
    if len(ranks) < 2:
        return None
    common = sorted(set.intersection(*(set(one) for one in ranks.values())))
    ends = range(len(common), WINDOW - 1, -WINDOW)
    windows = [common[end - WINDOW : end] for end in ends]
    found: tuple[int, float, str] | None = None
    since = 0
    for steps in windows:  # the latest first
        now = _slowest(ranks, steps)
        if now is None or (found is not None and now[0] != found[0]):
            break
        found, since = found or now, steps[0]
    if found is None:
        return None
    rank, times, phase = found
    return f"rank {rank} is {times:.1f} times the median since step {since}, in {phase}"


def _slowest(
    ranks: Mapping[int, Mapping[int, Mapping[str, float]]], steps: list[int]
) -> tuple[int, float, str] | None:
    """The slow rank of a window, how many times the median it is, and in which phase most."""
    own = {
        rank: {phase: median(of[step][phase] for step in steps) for phase in PHASES}
        for rank, of in ranks.items()
    }
    total = {rank: sum(phases.values()) for rank, phases in own.items()}
    usual = median(total.values())
    rank = max(total, key=lambda one: total[one])
    if total[rank] < SLOW * usual or total[rank] - usual < SHORT_S:
        return None
    excess = {
        phase: own[rank][phase] - median(one[phase] for one in own.values()) for phase in PHASES
    }
    return rank, total[rank] / max(usual, 1e-9), max(PHASES, key=lambda phase: excess[phase])


def _phases(record: Mapping[str, Any], overlapping: bool) -> dict[str, float]:
    waited_s = max(record["comm_s"] - record["overlapped_s"], 0.0) if overlapping else 0.0
    phases = {phase: float(record[f"{phase}_s"]) for phase in PHASES}
    return {**phases, "backward": max(phases["backward"] - waited_s, 0.0)}
