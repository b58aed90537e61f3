"""The optimizer and its learning rate: one step per global batch, whatever the number of ranks."""

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from configs.settings.train import TrainConfig
from train.tasks.base import Task


def build_optimizer(config: TrainConfig, model: nn.Module, task: Task | None = None) -> Optimizer:
    """The task's optimizer if it has one, else that of --optimizer over the trained parameters.

    Vectors (biases, norms) decay only with --decay all.
    """
    own = None if task is None else task.build_optimizer(model)
    if own is not None:
        return own
    trained = [param for param in model.parameters() if param.requires_grad]
    if config.decay == "all":
        groups = [{"params": trained, "weight_decay": config.weight_decay}]
    else:
        groups = [
            {
                "params": [param for param in trained if param.ndim > 1],
                "weight_decay": config.weight_decay,
            },
            {"params": [param for param in trained if param.ndim <= 1], "weight_decay": 0.0},
        ]
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


def schedule_end(config: TrainConfig, epoch_steps: int) -> int:
    """The step at which the decay of the learning rate ends."""
    return config.schedule_steps or config.epochs * epoch_steps


def build_schedule(
    config: TrainConfig, optimizer: Optimizer, epoch_steps: int, task: Task | None = None
) -> LambdaLR:
    """The task's schedule if it has one, else linear warm-up, then decay to zero or constant.

    `polynomial` falls to --end-lr by (1 - progress) ** power, as in fairseq's and NVIDIA's BERT;
    `linear` is its case of power 1 and end 0. The end of the schedule does not depend on
    --max-steps: a run that stops early has used the same rates.
    """
    horizon = schedule_end(config, epoch_steps)
    own = None if task is None else task.schedule(horizon)
    if own is not None:
        return LambdaLR(optimizer, own)
    power, end = 1.0, 0.0
    if config.schedule == "polynomial":
        power, end = config.power, config.end_lr / config.lr

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return step / config.warmup_steps
        if config.schedule == "constant":
            return 1.0
        left = max(0.0, (horizon - step) / max(1, horizon - config.warmup_steps))
        return float(end + (1 - end) * left**power)

    return LambdaLR(optimizer, factor)
