"""`--split auto`: measure the ranks, choose a split, say what it should gain, and what it got."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...records.schema import SplitRecord, StepRecord
from ...sync.ranks import Ranks
from ..by_length import PASS_TOKENS
from ..plan import BatchPlan, split_batch
from .probe import Probe
from .step_cost import DEAD_BAND, Cost, best_weights, compute_s

# A root's link carries (N-1) S each way at once, a ring's 2 (N-1)/N S: N/2 times as long.
ROOT_MODES = ("gather_scatter",)


@dataclass
class Plan:
    """A split, and what is known of it."""

    weights: tuple[float, ...]
    costs: tuple[Cost, ...]
    forwards: tuple[Cost, ...]
    limits: tuple[int, ...]
    network_s: float
    pass_samples: float = 0.0  # see Probe

    def applied(self, plan: BatchPlan) -> BatchPlan:
        """`plan` with these parts."""
        plan = replace(plan, weights=self.weights, limits=self.limits)
        if plan.pass_tokens is None:
            return plan
        # a line's offset is the first to suffer from noise, and passes too many cost more than
        # too few
        measured = self.pass_samples * plan.mean_length
        return replace(plan, pass_tokens=max(measured, PASS_TOKENS["cpu"]))


class Splitter:
    """Chooses weights on all ranks alike; the trainer asks it at the start and after epochs.

    `mean_tokens` of a sample, where batches are cut by length: a sample then means so many.
    """

    def __init__(
        self,
        ranks: Ranks,
        batch_size: int,
        mode: str,
        say: Callable[[str], None],
        note: Callable[[SplitRecord], None],
        mean_tokens: float = 0.0,
    ) -> None:
        self._ranks, self._batch_size, self._mode = ranks, batch_size, mode
        self._say, self._note, self._mean_tokens = say, note, mean_tokens
        self._plan: Plan | None = None

    def begin(self, probe: Probe, model: nn.Module, device: torch.device) -> Plan:
        """The first plan, from what every rank has found of itself."""
        cost, forward = probe.cost, probe.forward
        own = [cost.alpha_s, cost.beta_s, forward.alpha_s, forward.beta_s]
        own += [probe.limit, probe.pass_samples]
        rows = self._ranks.all_gather(torch.tensor(own, dtype=torch.float64, device=device))
        found = rows.tolist()
        costs = tuple(Cost(row[0], row[1]) for row in found)
        plan = self._plan = Plan(
            weights=best_weights(costs, self._batch_size),
            costs=costs,
            forwards=tuple(Cost(row[2], row[3]) for row in found),
            limits=tuple(int(row[4]) for row in found),
            network_s=self._network_s(model, device),
            pass_samples=fmean(row[5] for row in found),
        )
        even = (1.0,) * self._ranks.world_size
        if self._gain(plan, even, plan.weights) < DEAD_BAND:
            plan.weights = even
        self._tell(plan, step=0)
        return plan

    def restore(self, state: dict[str, Any]) -> Plan:
        """The plan that a checkpoint holds."""
        self._plan = Plan(
            tuple(state["weights"]),
            tuple(Cost(**one) for one in state["costs"]),
            tuple(Cost(**one) for one in state["forwards"]),
            tuple(state["limits"]),
            state["network_s"],
            state.get("pass_samples", 0.0),
        )
        return self._plan

    def state(self) -> dict[str, Any] | None:
        """The plan for a checkpoint."""
        return None if self._plan is None else asdict(self._plan)

    def after_epoch(
        self, steps: Sequence[StepRecord], device: torch.device, *, is_last: bool
    ) -> Plan | None:
        """A better plan, where speeds have changed by enough; else None. All ranks call it.

        The forward pass tells: what follows may be waiting for others.
        """
        plan = self._plan
        timed = [one for one in steps[1:] if one.samples == self._batch_size]
        if plan is None or not timed:
            return None
        own = plan.forwards[self._ranks.rank]
        expected = fmean(own.of(self._samples(one)) for one in timed)
        drift = fmean(one.forward_s for one in timed) / expected
        drifts = self._ranks.all_gather(
            torch.tensor([drift], dtype=torch.float64, device=device)
        ).flatten()
        self._tell_result(plan, timed)
        costs = tuple(
            cost.scaled(one) for cost, one in zip(plan.costs, drifts.tolist(), strict=True)
        )
        weights = best_weights(costs, self._batch_size)
        now = replace(plan, costs=costs)
        if is_last or self._gain(now, plan.weights, weights) < DEAD_BAND:
            return None
        forwards = tuple(
            cost.scaled(one) for cost, one in zip(plan.forwards, drifts.tolist(), strict=True)
        )
        self._plan = replace(now, weights=weights, forwards=forwards)
        self._tell(self._plan, step=steps[-1].step)
        return self._plan

    def _samples(self, step: StepRecord) -> float:
        return step.local_tokens / self._mean_tokens if self._mean_tokens else step.local_samples

    def _network_s(self, model: nn.Module, device: torch.device) -> float:
        """Seconds to synchronise gradients, from two reductions of as many bytes."""
        if self._ranks.world_size == 1:
            return 0.0
        numbers = sum(param.numel() for param in model.parameters() if param.requires_grad)
        dtype = next(model.parameters()).dtype
        flat = torch.zeros(numbers, dtype=dtype, device=device)
        seconds = []
        for _ in range(2):
            self._ranks.barrier(device)
            started = time.perf_counter()
            self._ranks.all_reduce(flat, dist.ReduceOp.SUM)
            flat[:1].item()
            seconds.append(time.perf_counter() - started)
        slowest = torch.tensor([min(seconds)], dtype=torch.float64, device=device)
        ring_s = self._ranks.all_reduce(slowest, dist.ReduceOp.MAX).item()
        return ring_s * (self._ranks.world_size / 2 if self._mode in ROOT_MODES else 1)

    def _gain(self, plan: Plan, old: Sequence[float], new: Sequence[float]) -> float:
        before = compute_s(plan.costs, old, self._batch_size) + plan.network_s
        return before / (compute_s(plan.costs, new, self._batch_size) + plan.network_s)

    def _tell(self, plan: Plan, step: int) -> None:
        even = (1.0,) * self._ranks.world_size
        compute, parts = (
            compute_s(plan.costs, even, self._batch_size),
            split_batch(self._batch_size, plan.weights),
        )
        gain = self._gain(plan, even, plan.weights)
        bound = "computing" if compute >= plan.network_s else "the network"
        rates = ", ".join(f"{1 / cost.beta_s:.0f}" for cost in plan.costs)
        if len(set(plan.weights)) == 1:
            what = "even parts are best"
        else:
            what = f"parts {','.join(map(str, parts))}: {gain:.2f} times the even split's speed"
        self._say(
            f"split auto: bound by {bound} ({compute:.3f} s of computing, {plan.network_s:.3f} s "
            f"of network a step); samples/s of each rank: {rates}; {what}"
        )
        self._note(
            SplitRecord(
                step=step,
                rank=self._ranks.rank,
                parts=parts,
                alpha_s=[cost.alpha_s for cost in plan.costs],
                beta_s=[cost.beta_s for cost in plan.costs],
                limits=list(plan.limits),
                network_s=plan.network_s,
                predicted_gain=gain,
            )
        )

    def _tell_result(self, plan: Plan, steps: Sequence[StepRecord]) -> None:
        got = fmean(one.samples for one in steps) / fmean(one.step_s for one in steps)
        even = (1.0,) * self._ranks.world_size
        expected = self._batch_size / (
            compute_s(plan.costs, plan.weights, self._batch_size) + plan.network_s
        )
        alike = self._batch_size / (compute_s(plan.costs, even, self._batch_size) + plan.network_s)
        self._say(
            f"split auto: got {got:.1f} samples/s; expected {expected:.1f}, "
            f"{alike:.1f} with even parts"
        )
