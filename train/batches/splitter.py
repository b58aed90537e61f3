"""`split="auto"`: faster ranks get more samples, so that all ranks end a step at the same time.

A rank computes n samples in beta n seconds. beta is measured during the training: there is no extra
work, and only the assignment of samples to ranks changes. Only forward passes are timed, since the
rest of a step may wait for other ranks.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from ..records.schema import SplitRecord
from ..sync.ranks import Ranks
from .plan import BatchPlan, split_batch

MEASURED_STEPS = 8  # before the first split; the first step is a warm-up
# A new split must gain at least this much, since speeds always vary a little.
DEAD_BAND = 1.05


class Pace:
    """The samples or tokens that this rank has computed since the last split, and their seconds.

    Only the time for computing counts: on a CPU, the time in which a forward pass waits for other
    ranks, as in a BatchNorm over all ranks, is left out. The first step is also left out, since it
    may take longer.
    """

    def __init__(self) -> None:
        self.steps = 0  # the first one included
        self._seconds = 0.0
        self._amount = 0  # of samples, or of tokens if the parts depend on lengths

    def add(self, forward_s: float, amount: int) -> None:
        """Count a step: its samples or tokens on this rank, and the seconds of its forward pass."""
        if self.steps:
            self._seconds += forward_s
            self._amount += amount
        self.steps += 1

    def take(self) -> tuple[float, int]:
        """The seconds, and the samples or tokens, since the last call."""
        taken = self._seconds, self._amount
        self.steps = 0
        self._seconds = 0.0
        self._amount = 0
        return taken


class Splitter:
    """Chooses the ranks' parts; all ranks make the same choice."""

    def __init__(
        self,
        ranks: Ranks,
        say: Callable[[str], None] = lambda line: None,
        note: Callable[[SplitRecord], None] = lambda record: None,
    ) -> None:
        self._ranks = ranks
        self._say = say
        self._note = note
        self._betas = [0.0] * ranks.world_size  # seconds per sample on each rank; 0: unknown

    def rebalanced(self, plan: BatchPlan, step: int, seconds: float, amount: float) -> BatchPlan:
        """`plan`, or a plan with other parts from `step` on if that gains enough.

        Every rank must call it: it has one all_gather of two numbers. In `seconds` this rank has
        computed `amount` samples, or tokens if all ranks count tokens.
        """
        local = torch.tensor([seconds, amount], dtype=torch.float64, device=self._ranks.device)
        for rank, (taken_s, computed) in enumerate(self._ranks.all_gather(local).tolist()):
            if taken_s and computed:
                self._betas[rank] = taken_s / computed
        if not all(self._betas):
            return plan
        speeds = tuple(1 / beta for beta in self._betas)
        gain = self._slowest(plan, plan.weights) / self._slowest(plan, speeds)
        if gain > DEAD_BAND:
            plan = replace(plan, weights=speeds)
        self._report(plan, step)
        return plan

    def _slowest(self, plan: BatchPlan, weights: Sequence[float]) -> float:
        """The time of the slowest rank, by samples alone; a rank without samples computes one."""
        parts = split_batch(plan.batch_size, weights)
        return max(beta * max(1, part) for beta, part in zip(self._betas, parts, strict=True))

    def _report(self, plan: BatchPlan, step: int) -> None:
        even = (1.0,) * self._ranks.world_size
        parts = split_batch(plan.batch_size, plan.weights)
        gain = self._slowest(plan, even) / self._slowest(plan, plan.weights)
        result = f"parts {','.join(map(str, parts))} are {gain:.2f} times as fast as even parts"
        if len(set(plan.weights)) == 1:
            result = "even parts are best"
        shares = ", ".join(f"{min(self._betas) / beta:.2f}" for beta in self._betas)
        self._say(f"split auto, step {step}: relative speeds of the ranks: {shares}; {result}")
        rank = self._ranks.rank
        self._note(SplitRecord(step=step, rank=rank, parts=parts, predicted_gain=gain))
