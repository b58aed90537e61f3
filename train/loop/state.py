"""The training state that changes from step to step, as checkpoints save and restore it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from train.batches.steps import Steps
from train.checkpoints.object_states import Collected, Stateful
from train.checkpoints.synced_objects import SyncedModel, SyncedOptimizer
from train.model.precision import Precision
from train.sync.base import GradSync
from train.sync.ranks import BROADCAST_BYTES, flatten, groups


class Schedule:
    """The state of a schedule without its functions, which are created again from the settings."""

    def __init__(self, schedule: LambdaLR, optimizer: Optimizer) -> None:
        self._schedule = schedule
        self._groups = optimizer.param_groups

    def state_dict(self) -> dict[str, Any]:
        state = self._schedule.state_dict()
        del state["lr_lambdas"]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._schedule.load_state_dict({**state, "lr_lambdas": [None] * len(self._groups)})
        for group, lr in zip(self._groups, self._schedule.get_last_lr(), strict=True):
            group["lr"] = lr


class MeasuredSplit:
    """The weights of the ranks' parts, as a checkpoint stores them if speeds were measured."""

    def __init__(self, steps: Steps, tell: Callable[[str], None]) -> None:
        self._steps = steps
        self._tell = tell

    def state_dict(self) -> dict[str, Any]:
        steps = self._steps
        return {"weights": list(steps.plan.weights) if steps.measured else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the saved parts; with another number of ranks, they are measured again."""
        steps = self._steps
        weights = state["weights"]
        if steps.is_auto and weights and len(weights) == len(steps.plan.weights):
            self._tell("split auto: continuing with the checkpoint's split")
            steps.plan = replace(steps.plan, weights=tuple(weights))
            steps.measured = steps.step


@dataclass
class TrainingState:
    """The model, and what changes with it; checkpoints save its `objects`."""

    model: nn.Module  # without a sync mode's wrapper
    optimizer: Optimizer
    schedule: LambdaLR
    precision: Precision
    grad_sync: GradSync

    def objects(self, *, forgets: bool = False) -> dict[str, Stateful | Collected]:
        """Return the objects by name; `forgets`: the sync mode restarts, like the optimizer."""
        return {
            "model": SyncedModel(self.model, self.grad_sync, forgets=forgets),
            "optimizer": SyncedOptimizer(self.model, self.optimizer, self.grad_sync),
            "schedule": Schedule(self.schedule, self.optimizer),
            "precision": self.precision,
        }

    @torch.no_grad()
    def equalize(self) -> float:
        """Give every rank the parameters of rank 0; return the largest difference from them.

        Collective: a broadcast of all parameters, in groups, and one all_gather of a number.
        """
        ranks = self.grad_sync.ranks
        furthest = torch.zeros(1, dtype=torch.float64, device=ranks.device)
        params = [param.detach() for param in self.model.parameters()]
        for group in groups(params, BROADCAST_BYTES):
            local = flatten(group)
            ranks.broadcast(group)
            difference = (flatten(group) - local).abs().max()
            furthest = torch.maximum(furthest, difference.to(furthest))
        return float(ranks.all_gather(furthest).max())
