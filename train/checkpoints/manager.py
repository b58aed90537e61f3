"""When a checkpoint is due, and what is in it."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.checkpoints import snapshot, storage, sync_state
from train.checkpoints.exchange import Files, gather_text
from train.checkpoints.resume import DATA, OPTIMIZER, SCHEDULE
from train.checkpoints.writer import Writer, warn
from train.distributed import patience
from train.distributed.world import World
from train.model import rng
from train.model.precision import Precision
from train.records.sinks import Sinks
from train.sync.base import GradSync, all_gather


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


class StepRequests(NamedTuple):
    """What at least one rank says after a step, known to all of them."""

    stop: bool = False  # it was asked to
    save: bool = False  # a checkpoint is due
    busy: bool = False  # it is still writing the last one


class CheckpointManager:
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
        self._due_since = time.monotonic()  # the last one, made or skipped
        self._progress = ""  # of the last one, when it was last asked for
        self._told = -1  # the step of the last one that was said to be slow
        self._best: float | None = None
        self._best_step: int | None = None
        self._run: int | None = None  # among those that write into this folder
        self._origin: int | None = None  # the run that this one goes on from, at the very first

    def is_due(self, step: int) -> bool:
        """Whether one should be made after `step`; rank 0 decides for all."""
        if self._interval is None or not self._world.is_main:
            return False
        if self._interval.unit == "step":
            return step % int(self._interval.every) == 0
        waited_s = time.monotonic() - self._due_since
        return self._interval.unit == "min" and waited_s >= 60 * self._interval.every

    @property
    def is_busy(self) -> bool:
        """Whether this rank is still writing the last one."""
        writes = self._writer is not None and self._writer.is_busy
        self._progress = self._writer.progress if self._writer is not None and writes else ""
        return writes

    def is_due_at_end(self, step: int) -> bool:
        """Whether one should be made when all is done, to go on with more steps one day."""
        return self._interval is not None and self._saved != step

    @property
    def is_due_after_epoch(self) -> bool:
        """Whether one should be made at the end of every epoch."""
        return self._interval is not None and self._interval.unit == "epoch"

    def is_best(self, metrics: dict[str, float], step: int) -> bool:
        """Whether --keep-best wants that of `step`, by metrics that are the same on all ranks.

        Raises:
            UsageError: --keep-best names none of them.
        """
        name = self._config.keep_best
        if name is None or not metrics:
            return False
        if name not in metrics:
            raise UsageError(f"--keep-best {name}: there is {', '.join(sorted(metrics))}")
        sign = -1 if "loss" in name else 1
        if self._best is not None and sign * metrics[name] <= sign * self._best:
            return False
        self._best, self._best_step = metrics[name], step
        return True

    def make(self, parts: Parts, notes: dict[str, Any], requests: StepRequests) -> None:
        """Make a checkpoint that is due, or skip it where a rank is still writing the last one.

        If the training is to stop, wait for the last one, make this one, and wait for it.

        Raises:
            MusterError: the training is to stop, and it could not be written.
        """
        if requests.busy and not requests.stop:
            self._skip(parts.at.step)
            return
        self._save(parts, notes)
        if requests.stop:
            self.close()
            patience.wait_for_all(self._world)
            if self._writer is not None:
                self._writer.require(self._saved)

    def _skip(self, step: int) -> None:
        """Let a checkpoint be; a rank that is busy says so, once for each that it writes."""
        self._due_since = time.monotonic()
        if self._progress and self._told != self._saved:
            self._told = self._saved
            warn(f"step {step}: no checkpoint, for the disk is slow: {self._progress}")

    def _save(self, parts: Parts, notes: dict[str, Any]) -> None:
        """Make a checkpoint, once the last one is on the disk of every rank that writes.

        The step that follows waits for the copies, not for the disk.
        """
        started = time.perf_counter()
        runs = self._begin()
        parts.grad_sync.settle(parts.model)
        remembered = sync_state.gather(
            self._world, parts.grad_sync.state(), self._device, keeps=self._writer is not None
        )
        generators = gather_text(self._world, rng.capture(), self._device)
        self._saved, self._due_since = parts.at.step, time.monotonic()
        if self._writer is None:
            return
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
            "run_id": self._config.run_id,  # a launcher that starts it again looks for its own
            "settings": {
                name: getattr(self._config, name) for name in (*DATA, *SCHEDULE, *OPTIMIZER)
            },
            "best": self._best,
            "best_step": self._best_step,
            **notes,
        }
        self._writer.start(
            parts.at.step,
            files,
            state,
            stall_s=time.perf_counter() - started,
            runs=runs,
            best=self._best_step,
        )

    def _begin(self) -> tuple[int, int]:
        """Wait until no rank writes; this run's number in the folder, and its origin's."""
        earlier = 0
        if self._writer is not None:
            self._writer.wait()
            if self._run is None:
                earlier = max((one.run for one in storage.found(self.folder)), default=0)
        patience.wait_for_all(self._world)
        if self._run is None:
            every = all_gather(self._world, torch.tensor([earlier], device=self._device))
            self._run = 1 + int(every.max())
        return self._run, self._run if self._origin is None else self._origin

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
            parts.model, sync_state.own(remembered, self._world.rank if same else None)
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
            rng.restore(state["generators"][self._world.rank])
        self._best, self._best_step = state["best"], state["best_step"]
        self._origin = state["origin"]
        self._saved = parts.at.step


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """A schedule's numbers, without its functions."""
    return {key: value for key, value in state.items() if key != "lr_lambdas"}
