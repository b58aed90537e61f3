"""The parts of a run, and the trainer that is built from them."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Subset

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.batches.by_length import PASS_TOKENS
from train.batches.plan import BatchPlan
from train.batches.splitter import Splitter
from train.batches.steps import Steps
from train.checkpoints.manager import CheckpointManager
from train.distributed import agreement
from train.evaluation.task_metrics import TaskMetrics
from train.loop import export
from train.loop.evaluation import lengths_of, require_metric
from train.loop.run_settings import RunSettings
from train.loop.state import MeasuredSplit, TrainingState
from train.loop.step import TrainedModel, build_schedule, schedule_end
from train.loop.trainer import Trainer
from train.model import precision, rng
from train.program.saved_objects import Checkpoints
from train.records.sinks import Console, History, Sinks
from train.records.traffic import Meter
from train.sync import batchnorm, drift, plugins
from train.sync.base import SyncOptions
from train.sync.ranks import Ranks
from train.sync.sharding.layers import repeated
from train.tasks.base import Datasets, Samples, Task

T = TypeVar("T")


def from_settings(kind: type[T], config: TrainConfig) -> T:
    """Create a dataclass `kind` from the settings that have the same names as its fields."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(config, name) for name in names})


def trainer(
    config: TrainConfig,
    ranks: Ranks,
    device: torch.device,
    task: Task,
    console: Console,
    sinks: Sinks,
    *,
    folder: Path = Path(),
    firsts: Sequence[int] | None = None,
    meter: Meter | None = None,
    metrics: TaskMetrics | None = None,
    weights: Path | None = None,
) -> Trainer:
    """Build a trainer. Every rank must call this; (collective) marks where ranks wait.

    `folder` is the folder of the checkpoints. `firsts` contains, for each rank, the first rank with
    the same file system, which writes there; by default all ranks share one file system.
    `weights` is a folder with initial weights that `export.save` wrote.
    """
    grad_sync = plugins.build(config.sync, ranks, from_settings(SyncOptions, config))
    sets = datasets(config, task)
    plain = model(config, task, device)
    if weights is not None:
        export.load_weights(plain, weights)  # here, since a sync mode may split the model
    batch_plan = plan(config, task, sets.train, plain, ranks.world_size, grad_sync.same_passes)
    # (collective) disks may differ in speed
    agreement.wait_for_all(ranks.world_size)
    if ranks.world_size > 1 and (line := drift.note(plain)):
        console.line(line)
    if config.batchnorm == "synced" and ranks.world_size > 1:
        plain = batchnorm.convert(plain, config.timeout_s)  # (collective) a group of its own
    if config.compile:
        compile_layers(plain, device)
    if meter is not None:
        meter.begin()
    wrapped = grad_sync.wrap(plain)  # (collective) replicas become equal
    steps = Steps(
        batch_plan, ranks, config.epochs, wrapped if config.split == "auto" else None,
        most=config.max_steps, splitter=Splitter(ranks, console.line, sinks.write),
    )  # fmt: skip
    chosen = grad_sync.prepare(optimizer(config, wrapped, task))
    epoch_steps = batch_plan.steps_per_epoch
    schedule = build_schedule(config, chosen, epoch_steps, task)
    arithmetic = precision.Precision(config.precision, device)
    state = TrainingState(plain, chosen, schedule, arithmetic, grad_sync)
    history = History()
    best = config.best()
    manager = CheckpointManager(
        folder, ranks, firsts=firsts, note=sinks.write, interval=config.checkpoint_interval(),
        keep_last=config.keep_last, keep_best=best and str(best), run_id=config.run_id,
    )  # fmt: skip
    objects = {
        **state.objects(forgets=config.reset_optimizer),
        "position": steps.position,
        "split": MeasuredSplit(steps, console.line),
        "history": history,
        "settings": RunSettings(
            config, len(sets.train), schedule_end(config, epoch_steps), console.line
        ),
    }
    checkpoints = Checkpoints(manager, ranks, objects)
    trained = TrainedModel(task, state, wrapped, config.max_grad_norm)
    built = Trainer(
        config, trained, sets, steps, manager, checkpoints, history, console, sinks,
        metrics=metrics, meter=meter,
    )  # fmt: skip
    built.count_traffic(before=0, epoch=0)  # (collective) traffic of the broadcast in `wrap`
    if best is not None:  # (collective) an evaluation of a few samples, if needed
        require_metric(best.metric, task, sets, state, config, metrics)
    rng.seed(rng.hash_seed(config.seed, ranks.rank))  # the same weights, but different dropout
    return built


def datasets(config: TrainConfig, task: Task) -> Datasets:
    """Return the task's datasets, each with at most as many samples as the settings allow."""

    def first(samples: Samples, limit: int | None) -> Samples:
        if limit is None or limit >= len(samples):
            return samples
        return Subset(samples, range(limit))  # type: ignore[arg-type]  # any map-style dataset

    train, evaluation = task.build_datasets()
    sets = {name: first(samples, config.eval_samples) for name, samples in evaluation.items()}
    return Datasets(first(train, config.train_samples), sets)


def model(config: TrainConfig, task: Task, device: torch.device) -> nn.Module:
    """Build the model, with the same weights on every rank."""
    rng.seed(config.seed)
    model = task.build_model()
    if config.dropout is not None:
        rng.set_dropout(model, config.dropout)
    return precision.move_model(model, config.precision, device)


def plan(
    config: TrainConfig,
    task: Task,
    samples: Samples,
    model: nn.Module,
    world_size: int,
    same_passes: bool = False,
) -> BatchPlan:
    """Plan which rank computes which samples; parts are equal if the split is not measured yet.

    Batches are cut by length, unless a BatchNorm would then see different samples together.
    """
    normalises = batchnorm.has_any(model)
    lengths = lengths_of(task, samples)
    by_length = config.length_balance and len(lengths) > 0 and not normalises
    return BatchPlan(
        len(samples),
        config.batch_size,
        config.split_weights() or (1.0,) * world_size,
        config.accumulation,
        config.seed,
        in_step=config.batchnorm == "synced" and normalises,
        same_passes=same_passes,
        lengths=lengths,
        pass_tokens=PASS_TOKENS[next(model.parameters()).device.type] if by_length else None,
    )


def compile_layers(model: nn.Module, device: torch.device) -> None:
    """Compile each layer that `model` repeats, in place; the whole model if it repeats none.

    With compiled layers, gradients become ready layer by layer, so they are sent while others are
    computed. If the whole model were compiled, all gradients would become ready at the end of the
    backward pass. Equal layers are compiled only once.

    Raises:
        UsageError: --compile finds no compiler for the code that it generates.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise UsageError(
            f"--compile needs a C++ compiler on every node, but {compiler} was not found"
        )
    # On CPUs this process compiles: a pool would take cores from the computation. A GPU's kernels
    # are compiled by a pool with this worker's share of the cores; the pool ends with its worker.
    torch._inductor.config.compile_threads = torch.get_num_threads() if device.type == "cuda" else 1
    for layer in repeated(model) or [model]:
        layer.compile()


def optimizer(config: TrainConfig, model: nn.Module, task: Task | None = None) -> Optimizer:
    """Build the task's optimizer, or else the one of --optimizer, for the trained parameters.

    Vectors (biases, norms) decay only with --decay all.
    """
    from_task = None if task is None else task.build_optimizer(model)
    if from_task is not None:
        return from_task
    decaying = [param for param in model.parameters() if param.requires_grad]
    groups = [{"params": decaying, "weight_decay": config.weight_decay}]
    if config.decay != "all":
        groups[0]["params"] = [param for param in decaying if param.ndim > 1]
        vectors = [param for param in decaying if param.ndim <= 1]
        groups.append({"params": vectors, "weight_decay": 0.0})
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    if config.optimizer == "adadelta":
        return torch.optim.Adadelta(
            groups, lr=config.lr, rho=config.adadelta_rho, eps=config.adadelta_eps
        )
    betas = (config.adam_beta1, config.adam_beta2)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    # One fused kernel over all parameters is several times faster than a loop over them.
    return kind(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True)
