"""When a checkpoint is due, and what is in it."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from configs.errors import UsageError
from configs.schema import TrainConfig
from train.checkpoints import memory, random_state, snapshot
from train.checkpoints.exchange import Files, gather_text
from train.checkpoints.folder import Checkpoint
from train.checkpoints.resume import DATA, OPTIMIZER, SCHEDULE
from train.checkpoints.writer import Writer
from train.grad_sync import GradSync
from train.measure.sinks import Sinks
from train.precision import Precision
from train.world import World


@dataclass
class Position:
    """How far a run is; with it, the plan says which samples come next."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # 0 is the first
    in_epoch: int = 0  # steps done of this epoch
    before: int = 0  # steps done before the data began anew (--reset-data)


@dataclass
class Parts:
    """All of a training that changes from step to step."""

    model: nn.Module  # without a sync mode's wrapper
    optimizer: Optimizer
    schedule: LRScheduler
    precision: Precision
    grad_sync: GradSync
    at: Position = field(default_factory=Position)


class Keeper:
    """Makes checkpoints of a training; every rank calls it alike, some of them write."""

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        device: torch.device,
        folder: Path,
        sinks: Sinks,
        *,
        writes: bool,
    ) -> None:
        self._config, self._world, self._device = config, world, device
        self._interval = config.checkpoint_interval()
        self._writer = None
        if writes:
            self._writer = Writer(
                folder, keep_last=config.keep_last, rank=world.rank, note=sinks.write
            )
        self.folder = folder
        self._saved = -1  # the step of the last one
        self._saved_at = time.monotonic()
        self._is_due = False
        self._best: float | None = None

    def is_due(self, step: int) -> bool:
        """Whether one should be made after `step`, and can be at once; rank 0 decides for all."""
        if self._interval is None or not self._world.is_main or self._writer is None:
            return False
        if self._interval.unit == "step":
            self._is_due |= step % int(self._interval.every) == 0
        elif self._interval.unit == "min":
            self._is_due |= time.monotonic() - self._saved_at >= 60 * self._interval.every
        return self._is_due and not self._writer.is_busy

    def is_due_at_end(self, step: int) -> bool:
        """Whether one should be made when all is done, to go on with more steps one day."""
        return self._interval is not None and self._saved != step

    def is_due_after_epoch(self, metrics: dict[str, float], step: int) -> bool:
        """Whether one should be made at the end of an epoch, whose metrics are the same on all.

        Raises:
            UsageError: --keep-best names none of them.
        """
        name = self._config.keep_best
        if name is not None and metrics:
            if name not in metrics:
                raise UsageError(f"--keep-best {name}: there is {', '.join(sorted(metrics))}")
            sign = -1 if "loss" in name else 1
            if self._best is None or sign * metrics[name] > sign * self._best:
                self._best = metrics[name]
                if self._writer is not None:
                    self._writer.wait()
                    self._writer.best = step
                return True
        return self._interval is not None and self._interval.unit == "epoch"

    def save(self, parts: Parts, notes: dict[str, Any]) -> None:
        """Make a checkpoint; the step that follows waits for the copies, not for the disk."""
        started = time.perf_counter()
        parts.grad_sync.settle(parts.model)
        remembered = memory.gather(
            self._world, parts.grad_sync.state(), self._device, keeps=self._writer is not None
        )
        generators = gather_text(self._world, random_state.capture(), self._device)
        self._saved, self._saved_at, self._is_due = parts.at.step, time.monotonic(), False
        if self._writer is None:
            return
        self._writer.wait()
        files = {
            "model": snapshot.of_model(parts.model),
            "optimizer": snapshot.of_optimizer(parts.model, parts.optimizer),
            **({"sync": remembered} if remembered else {}),
        }
        state = {
            "at": asdict(parts.at),
            "schedule": _plain(parts.schedule.state_dict()),
            "precision": parts.precision.state(),
            "generators": generators,
            "world_size": self._world.world_size,
            "settings": {
                name: getattr(self._config, name) for name in (*DATA, *SCHEDULE, *OPTIMIZER)
            },
            "best": self._best,
            "best_step": self._writer.best,
            **notes,
        }
        self._writer.start(parts.at.step, files, state, stall_s=time.perf_counter() - started)

    def finish(self) -> Checkpoint | None:
        """Return when the last one is on the disk: it, on ranks that write.

        Raises:
            MusterError: it could not be written.
        """
        if self._writer is None or self._saved < 0:
            return None
        return self._writer.require(self._saved)

    def close(self) -> None:
        """Wait for what is still being written, whatever becomes of it."""
        if self._writer is not None:
            self._writer.wait()

    def restore(self, parts: Parts, files: Files, state: dict[str, Any]) -> None:
        """Have the training go on from a checkpoint, with what is not to be reset."""
        config = self._config
        snapshot.into_model(parts.model, files["model"])
        if not config.reset_optimizer:
            snapshot.into_optimizer(parts.model, parts.optimizer, files["optimizer"])
            parts.precision.restore(state["precision"])
        same = state["world_size"] == self._world.world_size
        remembered = {} if config.reset_optimizer else files.get("sync", {})
        parts.grad_sync.restore(
            parts.model, memory.own(remembered, self._world.rank if same else None)
        )
        if not config.reset_lr_scheduler:
            # a schedule's functions are made anew, from the settings
            functions = [None] * len(parts.optimizer.param_groups)
            parts.schedule.load_state_dict({**state["schedule"], "lr_lambdas": functions})
            for group, lr in zip(
                parts.optimizer.param_groups, parts.schedule.get_last_lr(), strict=True
            ):
                group["lr"] = lr
        parts.at = Position(**state["at"])
        if config.reset_data:
            parts.at = Position(step=parts.at.step, before=parts.at.step)
        if same:
            random_state.restore(state["generators"][self._world.rank])
        self._best = state["best"]
        if self._writer is not None:
            self._writer.best = state["best_step"]
        self._saved = parts.at.step


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A schedule's numbers, without its functions."""
    return {key: value for key, value in state.items() if key != "lr_lambdas"}
