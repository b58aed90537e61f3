"""All ranks plan alike: who computes what follows from settings, samples, model and speeds."""

from dataclasses import replace

import torch
from torch import nn

from configs.settings.train import TrainConfig
from train.batches.auto_split.splitter import Plan
from train.batches.by_length import PASS_TOKENS
from train.batches.plan import BatchPlan, lengths_of
from train.sync import batchnorm
from train.tasks.base import Samples, Task


def plan_batches(
    config: TrainConfig,
    world_size: int,
    device: torch.device,
    task: Task,
    samples: Samples,
    model: nn.Module,
) -> BatchPlan:
    """Who computes what, with even parts where the split is still to be measured.

    Lengths count unless a BatchNorm would see other samples together for it.
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
        lengths=lengths,
        pass_tokens=PASS_TOKENS[device.type] if by_length else None,
    )


def after_split(plan: BatchPlan, split: Plan) -> BatchPlan:
    """`plan` as `split` has it."""
    plan = replace(plan, weights=split.weights, limits=split.limits)
    if plan.pass_tokens is None:
        return plan
    # a line's offset is the first to suffer from noise, and passes too many cost more than too few
    measured = split.pass_samples * plan.mean_length
    return replace(plan, pass_tokens=max(measured, PASS_TOKENS["cpu"]))
