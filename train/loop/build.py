"""Build all parts of one worker's run from its settings, once and in order."""

import os
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from torch.utils.data import Subset

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.batches.by_length import PASS_TOKENS
from train.batches.plan import BatchPlan
from train.batches.splitter import Splitter
from train.checkpoints.manager import CheckpointManager
from train.distributed import agreement
from train.distributed.world import World
from train.evaluation.task_metrics import TaskMetrics
from train.loop.evaluation import lengths_of
from train.loop.optimizer import build_optimizer, build_schedule
from train.loop.state import TrainingState, resets
from train.loop.trainer import Trainer
from train.model import precision, rng
from train.records.console import Console
from train.records.sinks import Sinks
from train.records.traffic import Meter
from train.sync import base, batchnorm
from train.sync.base import SyncOptions
from train.sync.ranks import Ranks
from train.sync.sharding.layers import repeated
from train.tasks.base import Datasets, Samples, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Builder:
    """Builds what a run's settings ask for, alike on every rank; other modules get plain values."""

    config: TrainConfig
    ranks: Ranks
    device: torch.device
    task: Task
    console: Console
    sinks: Sinks
    metrics: TaskMetrics | None = None

    def trainer(
        self, checkpoints: CheckpointManager | None = None, meter: Meter | None = None
    ) -> Trainer:
        """The arguments of a trainer. Ranks wait for each other in here, so the order matters."""
        config, ranks, task = self.config, self.ranks, self.task
        grad_sync = base.build(config.sync, ranks, of_settings(SyncOptions, config))
        datasets = first_samples(task.build_datasets(), config.train_samples, config.eval_samples)
        rng.seed(config.seed)  # the same weights on every rank
        model = task.build_model()
        if config.dropout is not None:
            rng.set_dropout(model, config.dropout)
        model = precision.place(model, config.precision, self.device)
        plan = self.plan(datasets.train, model, grad_sync.same_passes)
        splitter = Splitter(ranks, self.console.line, self.sinks.write)
        agreement.wait_for_all(ranks.world_size)  # their disks may differ in speed
        if config.batchnorm == "synced" and ranks.world_size > 1:
            model = batchnorm.convert(model, config.timeout_s)
        if config.compile:
            compile_layers(model, self.device)
        if meter is not None:
            meter.begin()
        wrapped = grad_sync.wrap(model)
        optimizer = grad_sync.prepare(build_optimizer(config, wrapped, task))
        schedule = build_schedule(config, optimizer, plan.steps_per_epoch, task)
        arithmetic = precision.Precision(config.precision, self.device)
        state = TrainingState(model, optimizer, schedule, arithmetic, grad_sync, resets(config))
        trainer = Trainer(
            config, task, datasets, plan, state, wrapped, self.console, self.sinks,
            checkpoints=checkpoints or self.checkpoints(Path(), writes=False),
            splitter=splitter if config.split == "auto" else None,
            meter=meter, metrics=self.metrics,
        )  # fmt: skip
        rng.seed(rng.hash_seed(config.seed, ranks.rank))  # but different dropout
        return trainer

    def checkpoints(self, folder: Path, *, writes: bool) -> CheckpointManager:
        """The object that makes the run's checkpoints and finds the one to resume from."""
        config = self.config
        return CheckpointManager(
            folder, self.ranks, writes=writes, note=self.sinks.write,
            interval=config.checkpoint_interval(),
            keep_last=config.keep_last, keep_best=config.keep_best,
        )  # fmt: skip

    def plan(self, samples: Samples, model: nn.Module, same_passes: bool = False) -> BatchPlan:
        """Which rank computes which samples; equal parts if the split is still to be measured.

        Samples are cut by length, unless a BatchNorm would then see other samples together.
        """
        config, normalises = self.config, batchnorm.has_any(model)
        lengths = lengths_of(self.task, samples)
        by_length = config.length_balance and len(lengths) > 0 and not normalises
        return BatchPlan(
            len(samples),
            config.batch_size,
            config.split_weights() or (1.0,) * self.ranks.world_size,
            config.accumulation,
            config.seed,
            in_step=config.batchnorm == "synced" and normalises,
            same_passes=same_passes,
            lengths=lengths,
            pass_tokens=PASS_TOKENS[self.device.type] if by_length else None,
        )


def first_samples(
    datasets: Datasets, train_samples: int | None, eval_samples: int | None
) -> Datasets:
    """`datasets` with at most `limit` samples in each set; None: all of them."""

    def first(samples: Samples, limit: int | None) -> Samples:
        if limit is None or limit >= len(samples):
            return samples
        return Subset(samples, range(limit))  # type: ignore[arg-type]  # any map-style dataset

    evaluation = {name: first(own, eval_samples) for name, own in datasets.evaluation.items()}
    return Datasets(first(datasets.train, train_samples), evaluation)


def of_settings(kind: type[T], config: TrainConfig) -> T:
    """A dataclass `kind`, filled from the settings that have the names of its fields."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(config, name) for name in names})


def ranks_of(world: World) -> Ranks:
    """`world` in the form that sync modes use."""
    return Ranks(world.rank, world.world_size)


def compile_layers(model: nn.Module, device: torch.device) -> None:
    """Compile each layer that `model` repeats, in place; the whole model if it repeats none.

    With compiled layers, gradients become ready layer by layer, so they are sent while others are
    computed. If the whole model were compiled, all would become ready at the end of the backward
    pass. Equal layers are compiled only once.

    Raises:
        UsageError: --compile finds no compiler for the code that it generates.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise UsageError(f"--compile needs a C++ compiler on every node; there is no {compiler}")
    # Compile in this process: a pool of compiler processes would outlive a worker that is killed.
    torch._inductor.config.compile_threads = 1
    for layer in repeated(model) or [model]:
        layer.compile()
