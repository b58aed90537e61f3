"""What a run is built from: its samples, model, plan and optimizer."""

import os
import shutil
from dataclasses import fields
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Subset

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.batches.by_length import PASS_TOKENS
from train.batches.plan import BatchPlan
from train.loop.evaluation import lengths_of
from train.model import precision, rng
from train.sync import batchnorm
from train.sync.sharding.layers import repeated
from train.tasks.base import Datasets, Samples, Task

T = TypeVar("T")


def of_settings(kind: type[T], config: TrainConfig) -> T:
    """A dataclass `kind`, filled from the settings that have the names of its fields."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(config, name) for name in names})


def datasets(config: TrainConfig, task: Task) -> Datasets:
    """The task's samples, of each set at most as many as the settings allow."""

    def first(samples: Samples, limit: int | None) -> Samples:
        if limit is None or limit >= len(samples):
            return samples
        return Subset(samples, range(limit))  # type: ignore[arg-type]  # any map-style dataset

    train, evaluation = task.build_datasets()
    sets = {name: first(samples, config.eval_samples) for name, samples in evaluation.items()}
    return Datasets(first(train, config.train_samples), sets)


def model(config: TrainConfig, task: Task, device: torch.device) -> nn.Module:
    """The model, with the same weights on every rank."""
    rng.seed(config.seed)
    model = task.build_model()
    if config.dropout is not None:
        rng.set_dropout(model, config.dropout)
    return precision.place(model, config.precision, device)


def plan(
    config: TrainConfig,
    task: Task,
    samples: Samples,
    model: nn.Module,
    world_size: int,
    same_passes: bool = False,
) -> BatchPlan:
    """Which rank computes which samples; equal parts if the split is still to be measured.

    Samples are cut by length, unless a BatchNorm would then see other samples together.
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
    computed. If the whole model were compiled, all would become ready at the end of the backward
    pass. Equal layers are compiled only once.

    Raises:
        UsageError: --compile finds no compiler for the code that it generates.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise UsageError(f"--compile needs a C++ compiler on every node; there is no {compiler}")
    # On CPUs this process compiles: a pool would take the cores that compute. A GPU's kernels are
    # compiled by a pool of this worker's share of the cores; it ends when its worker does.
    torch._inductor.config.compile_threads = torch.get_num_threads() if device.type == "cuda" else 1
    for layer in repeated(model) or [model]:
        layer.compile()


def optimizer(config: TrainConfig, model: nn.Module, task: Task | None = None) -> Optimizer:
    """The task's optimizer if it has one, else that of --optimizer over the trained parameters.

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
