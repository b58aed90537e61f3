"""The state of a training that changes from step to step, as checkpoints save and restore it."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from train.batches.steps import Position
from train.checkpoints.object_states import Collected, Stateful
from train.checkpoints.synced_objects import SyncedModel, SyncedOptimizer
from train.model.precision import Precision
from train.sync.base import GradSync
from train.sync.ranks import BROADCAST_BYTES, flatten, groups


class Schedule:
    """The state of a schedule without its functions, which are made again from the settings."""

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


@dataclass
class TrainingState:
    """What changes, and what belongs to it; `objects` are what checkpoints save of it."""

    model: nn.Module  # without a sync mode's wrapper
    optimizer: Optimizer
    schedule: LambdaLR
    precision: Precision
    grad_sync: GradSync
    at: Position = field(default_factory=Position)

    def objects(self, *, forgets: bool = False) -> dict[str, Stateful | Collected]:
        """By name; with `forgets` the sync mode starts with nothing, as the optimizer does."""
        return {
            "model": SyncedModel(self.model, self.grad_sync, forgets=forgets),
            "optimizer": SyncedOptimizer(self.model, self.optimizer, self.grad_sync),
            "schedule": Schedule(self.schedule, self.optimizer),
            "precision": self.precision,
            "position": self.at,
        }

    @torch.no_grad()
    def equalize(self) -> float:
        """Make parameters those of rank 0 on every rank; how far a value was from it at most."""
        ranks = self.grad_sync.ranks
        furthest = torch.zeros(1, dtype=torch.float64, device=ranks.device)
        params = [param.detach() for param in self.model.parameters()]
        for group in groups(params, BROADCAST_BYTES):
            local = flatten(group)
            ranks.broadcast(group)
            difference = (flatten(group) - local).abs().max()
            furthest = torch.maximum(furthest, difference.to(furthest))
        return float(ranks.all_gather(furthest).max())
