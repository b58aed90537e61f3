"""The state of a training that changes from step to step, as checkpoints save and restore it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from configs.settings.checkpoint import RESETS
from configs.settings.fields import flag
from configs.settings.train import TrainConfig
from train.checkpoints import snapshot
from train.checkpoints.storage import Files, State
from train.model.precision import Precision
from train.sync.base import GradSync
from train.sync.ranks import BROADCAST_BYTES, flatten, groups

# For each restored part, the settings it depends on; its flag --reset-... discards the part.
STANDS_ON = {
    "data": ("task", "seed", "batch_size", "train_samples"),
    # with --decay the optimizer has other groups, each with a rate of the schedule
    "lr_scheduler": ("lr", "schedule", "warmup_steps", "power", "end_lr", "decay"),
    "optimizer": ("optimizer",),
}
# Settings that change the losses, but say how long to train, or how to resume.
NOT_COMPARED = {"epochs", "schedule_steps", *(f"reset_{part.replace('-', '_')}" for part in RESETS)}
# What the trainer adds to a checkpoint's state.
OWN_PARTS = ("settings", "at", "samples", "schedule", "precision", "first_losses", "evaluations")


@dataclass
class Position:
    """How far a run is; with the position, the plan says which samples come next."""

    step: int = 0  # optimizer steps completed
    epoch: int = 0  # 0 is the first
    in_epoch: int = 0  # steps completed in this epoch
    before: int = 0  # steps completed before the data restarted (--reset-data)


@dataclass
class TrainingState:
    """What changes, and what belongs to it; it implements `HasState` of the checkpoints."""

    model: nn.Module  # without a sync mode's wrapper
    optimizer: Optimizer
    schedule: LambdaLR
    precision: Precision
    grad_sync: GradSync
    resets: frozenset[str] = frozenset()  # keys of STANDS_ON
    at: Position = field(default_factory=Position)
    notes: dict[str, Any] = field(default_factory=dict)  # the loop's own data for a checkpoint

    def own_state(self) -> Mapping[str, Tensor]:
        self.grad_sync.settle(self.model)
        return self.grad_sync.state()

    def saved(self, *, keeps: bool) -> tuple[Files, State]:
        values = self.grad_sync.values(self.model)
        model = snapshot.of_model(self.model, values, keeps=keeps)
        states = self.grad_sync.optimizer_state(self.model, self.optimizer)
        optimizer = snapshot.of_optimizer(self.model, states, keeps=keeps)
        schedule = self.schedule.state_dict()
        del schedule["lr_lambdas"]  # functions, which are made again from the settings
        state = {"at": asdict(self.at), "schedule": schedule, **self.notes}
        state["precision"] = self.precision.state_dict()
        return {"model": model, "optimizer": optimizer}, state

    def load(self, files: Files, state: State, own: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint, except for the parts to reset."""
        snapshot.into_model(self.model, files["model"], self.grad_sync.set_values)
        self.grad_sync.restore(self.model, {} if "optimizer" in self.resets else own)
        if "optimizer" not in self.resets:
            saved = snapshot.optimizer_state(self.model, self.optimizer, files["optimizer"])
            for param, values in saved:
                self.grad_sync.set_optimizer_state(self.optimizer, param, values)
            self.precision.load_state_dict(state["precision"])
        groups = self.optimizer.param_groups
        if "lr_scheduler" not in self.resets:
            self.schedule.load_state_dict({**state["schedule"], "lr_lambdas": [None] * len(groups)})
            for group, lr in zip(groups, self.schedule.get_last_lr(), strict=True):
                group["lr"] = lr
        self.at = Position(**state["at"])
        if "data" in self.resets:
            self.at = Position(step=self.at.step, before=self.at.step)

    @torch.no_grad()
    def equalize(self) -> float:
        """Make parameters those of rank 0 on every rank; how far a value was from it at most."""
        ranks = self.grad_sync.ranks
        furthest = torch.zeros(1, dtype=torch.float64, device=ranks.device)
        params = [param.detach() for param in self.model.parameters()]
        for group in groups(params, BROADCAST_BYTES):
            own = flatten(group)
            ranks.broadcast(group)
            apart = (flatten(group) - own).abs().max()
            furthest = torch.maximum(furthest, apart.to(furthest))
        return float(ranks.all_gather(furthest).max())


def recorded(config: TrainConfig) -> dict[str, Any]:
    """The settings that a checkpoint stores for a later comparison: those that change losses."""
    names = [
        setting.name
        for setting in fields(TrainConfig)
        if setting.metadata.get("affects") in (None, "losses", "gradients")
        and setting.name not in NOT_COMPARED
    ]
    return {name: getattr(config, name) for name in ["sync", *names]}


def changed(config: TrainConfig, state: State) -> str:
    """A line that names the settings which differ from the checkpoint's; empty if none does."""
    saved = state["settings"]
    differences = [
        f"{flag(name)} {_shown(saved[name])} → {_shown(now)}"
        for name, now in recorded(config).items()
        if saved.get(name, now) != now
        and (name != "sync" or "local_sgd" in (saved[name], now))  # the others are exact
    ]
    if not differences:
        return ""
    return f"going on with other settings than the checkpoint's: {', '.join(differences)}"


def _shown(value: object) -> str:
    return "unset" if value is None else str(value)


def mismatches(config: TrainConfig, state: State) -> Iterator[str]:
    """A line for each setting that differs from the checkpoint's and on which it depends."""
    if missing := [name for name in OWN_PARTS if name not in state]:
        yield f"this is a checkpoint of another program: it has no {', '.join(missing)}"
        return
    for part, names in STANDS_ON.items():
        for name in names if part not in resets(config) else ():
            now = getattr(config, name)
            was = state["settings"].get(name, now)  # older checkpoints do not store all
            if was != now:
                remedy = f"--reset-{part.replace('_', '-')}"
                yield (
                    f"{flag(name)} is {now}, but was {was} in the checkpoint; give {was}, "
                    f"or {remedy}"
                )
    best, was = config.best(), state.get("best_by")  # older checkpoints do not store it
    if best and was and state["best"] is not None and str(best) != was:
        yield (
            f"--keep-best is {best}, but the best checkpoint so far, of step "
            f"{state['best_step']}, is by {was}; give {was}, or leave --keep-best out"
        )


def moved_schedule(
    config: TrainConfig, now: int, state: State, tell: Callable[[str], None]
) -> Iterator[str]:
    """Why the learning rate would jump, if its decay now ends at step `now` and ended elsewhere."""
    was = state.get("schedule_end", now)  # older checkpoints do not store it
    if was == now or config.schedule == "constant" or config.reset_lr_scheduler:
        return
    if config.reset_data:
        tell(f"the learning rate decays until step {now}, no longer {was}")
        return
    yield (
        f"its learning rate decays until step {was}, but with --epochs {config.epochs} and "
        f"--schedule-steps {config.schedule_steps or 'unset'} it does until step {now}; "
        f"give --schedule-steps {was}, or --reset-lr-scheduler"
    )


def resets(config: TrainConfig) -> frozenset[str]:
    """The parts of a checkpoint that are not to be restored."""
    return frozenset(part for part in STANDS_ON if getattr(config, f"reset_{part}"))
