"""The optimizer and its learning rate, once per step, whatever the number of ranks."""

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from configs.schema import TrainConfig


def build_optimizer(config: TrainConfig, model: nn.Module) -> Optimizer:
    """AdamW or SGD over the trained parameters; vectors (biases, norms) never decay."""
    trained = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {
            "params": [param for param in trained if param.ndim > 1],
            "weight_decay": config.weight_decay,
        },
        {"params": [param for param in trained if param.ndim <= 1], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    # One fused kernel over all parameters: several times faster than a loop over them.
    return torch.optim.AdamW(groups, lr=config.lr, eps=config.adam_eps, fused=True)


def build_schedule(config: TrainConfig, optimizer: Optimizer, epoch_steps: int) -> LambdaLR:
    """Linear warm-up, then linear decay to zero at --schedule-steps, or constant.

    The horizon does not depend on --max-steps: a run that stops early has had the same rates.
    """
    horizon = config.schedule_steps or config.epochs * epoch_steps

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return step / config.warmup_steps
        if config.schedule == "constant":
            return 1.0
        return max(0.0, (horizon - step) / max(1, horizon - config.warmup_steps))

    return LambdaLR(optimizer, factor)
