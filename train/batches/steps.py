"""Which samples each rank computes in each step, for a loop of one's own."""

import math
from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, Protocol

import torch

from muster.errors import refuse

from ..sync.ranks import Ranks, current_ranks
from .auto_split.splitter import DEAD_BAND
from .auto_split.step_cost import Cost, best_weights, compute_s
from .by_length import PASS_TOKENS
from .plan import BatchPlan, StepPlan

MEASURED_STEPS = 8  # between two looks at the ranks' speeds


class TimesItself(Protocol):
    """What `muster.sync` returns: it knows how long this rank has computed."""

    def take_compute_s(self) -> float: ...


def steps(
    dataset: Sized | int,
    *,
    batch_size: int,
    seed: int = 0,
    epochs: int = 1,
    split: Sequence[float] | Literal["even", "auto"] = "even",
    lengths: Sequence[int] = (),
    accumulation: int = 1,
    model: TimesItself | None = None,
) -> "Steps":
    """The steps of a training: in each, this rank's micro-batches and their weights.

    Step k of an epoch takes samples [k M, (k + 1) M) of one seeded permutation, whatever the
    number of ranks and the split, with M = `batch_size`. With the mean loss of each micro-batch
    multiplied by its `weight`, the plain mean of gradients over ranks, which `muster.sync`
    computes, is the gradient of the mean loss over all M samples.

    Args:
        dataset: what has a length, or that length.
        batch_size: samples of a step, over all ranks.
        seed: of the permutations, one for each epoch.
        epochs: how often all samples are gone through.
        split: the ranks' parts as ratios, such as [8, 4, 4, 1], "even", or "auto": by the speeds
            that are measured while it trains, which needs `model`.
        lengths: tokens of each sample: with them, samples of like lengths are computed together.
        accumulation: micro-batches that each rank's part is cut into at least.
        model: what `muster.sync` returned.

    Raises:
        UsageError: a number that makes no sense.
    """
    ranks = current_ranks()
    size = dataset if isinstance(dataset, int) else len(dataset)
    weights = (1.0,) * ranks.world_size if isinstance(split, str) else tuple(map(float, split))
    counts = {"len(dataset)": size, "batch_size": batch_size, "epochs": epochs}

    def problems() -> Iterator[str]:
        for name, value in {**counts, "accumulation": accumulation}.items():
            if value < 1:
                yield f"{name} is {value}; it must be at least 1"
        if isinstance(split, str) and split not in ("even", "auto"):
            yield f"unknown split {split!r}; known: even, auto, or a number for each rank"
        if split == "auto" and model is None:
            yield "split='auto' measures the ranks by their model; give model=muster.sync(...)"
        if len(weights) != ranks.world_size:
            yield f"split has {len(weights)} numbers, but there are {ranks.world_size} ranks"
        elif not sum(weights) > 0 or not all(one >= 0 and math.isfinite(one) for one in weights):
            yield f"split is {list(weights)}; its numbers must be >= 0, and one of them > 0"
        if len(lengths) not in (0, size):
            yield f"there are {len(lengths)} lengths for {size} samples"

    refuse(problems(), where="muster.steps: ")
    plan = BatchPlan(
        size, batch_size, weights, accumulation, seed,
        lengths=tuple(lengths),
        pass_tokens=PASS_TOKENS[ranks.device.type] if len(lengths) else None,
    )  # fmt: skip
    return Steps(plan, ranks, epochs, model if split == "auto" else None)


class Steps:
    """Iterates over the steps that are left, from one epoch to the next; see `steps`.

    It has a `state_dict`, so that a training goes on where it was: with the step after the one
    that was handed out last.
    """

    def __init__(
        self, plan: BatchPlan, ranks: Ranks, epochs: int, model: TimesItself | None = None
    ) -> None:
        self.plan, self.epochs = plan, epochs
        self.step = 0  # the number of the one that was handed out last
        self._ranks, self._model = ranks, model
        self._betas = [0.0] * ranks.world_size  # measured seconds of a sample, on each rank
        self._samples = 0  # that this rank has computed since it was last measured

    def __len__(self) -> int:
        """Of all epochs together."""
        return self.epochs * self.plan.steps_per_epoch

    def __iter__(self) -> Iterator[StepPlan]:
        while self.step < len(self):
            epoch, done = divmod(self.step, self.plan.steps_per_epoch)
            plan = self.plan  # until speeds have changed
            for found in islice(plan.epoch(epoch, self._ranks.rank), done, None):
                self.step += 1
                self._samples += found.local_samples
                yield replace(found, step=self.step, epoch=epoch)
                if self._model is not None and self.step % MEASURED_STEPS == 0:
                    self._measure(self._model)
                if self.plan is not plan:
                    break

    def _measure(self, model: TimesItself) -> None:
        """Give faster ranks more, where that gains enough; collective."""
        seconds, samples = model.take_compute_s(), self._samples
        self._samples = 0
        own = torch.tensor([seconds, float(samples)], dtype=torch.float64)
        rows = self._ranks.all_gather(own.to(self._ranks.device)).tolist()
        for rank, (taken_s, computed) in enumerate(rows):
            if computed and taken_s:
                self._betas[rank] = taken_s / computed
        if not all(self._betas):
            return
        costs, size = [Cost(0.0, beta) for beta in self._betas], self.plan.batch_size
        weights = best_weights(costs, size)
        gain = compute_s(costs, self.plan.weights, size) / compute_s(costs, weights, size)
        if gain > DEAD_BAND:
            self.plan = replace(self.plan, weights=tuple(weights))

    def state_dict(self) -> dict[str, Any]:
        """How far it is, and in what."""
        plan = self.plan
        return {
            "step": self.step,
            "dataset_size": plan.dataset_size,
            "batch_size": plan.batch_size,
            "seed": plan.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, on any number of ranks and with any split.

        Raises:
            UsageError: those were steps through other samples.
        """
        now = self.state_dict()
        refuse(
            f"muster.steps: {name} is {now[name]}, but was {state[name]} where this goes on from"
            for name in ("dataset_size", "batch_size", "seed")
            if now[name] != state[name]
        )
        self.step = state["step"]
