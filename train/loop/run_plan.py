"""Which samples of a task a run uses, how long they are, and who computes what of them."""

import torch
from torch import nn
from torch.utils.data import Subset

from configs.settings.train import TrainConfig
from train.batches.by_length import PASS_TOKENS
from train.batches.plan import BatchPlan
from train.sync import batchnorm
from train.tasks.base import Datasets, Samples, Task


def lengths_of(task: Task, samples: Samples) -> list[int]:
    """The tokens of each sample; empty: not known, or all alike."""
    if isinstance(samples, Subset):
        whole = task.lengths(samples.dataset)  # type: ignore[arg-type]
        found = None if whole is None else whole[list(samples.indices)]
    else:
        found = task.lengths(samples)
    return found.tolist() if found is not None and len(found.unique()) > 1 else []


def first_samples(
    datasets: Datasets, train_samples: int | None, eval_samples: int | None
) -> Datasets:
    """`datasets` with at most so many samples in each set; None: all."""
    evaluation = {name: _first(own, eval_samples) for name, own in datasets.evaluation.items()}
    return Datasets(_first(datasets.train, train_samples), evaluation)


def _first(samples: Samples, limit: int | None) -> Samples:
    if limit is None or limit >= len(samples):
        return samples
    return Subset(samples, range(limit))  # type: ignore[arg-type]  # any map-style dataset will do


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
