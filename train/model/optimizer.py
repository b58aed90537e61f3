"""The optimizer and its learning rate, once per step, whatever the number of ranks."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How a step follows from gradients; `configs/settings/learning.py` says what each means."""

    optimizer: str
    lr: float
    schedule: str
    warmup_steps: int
    power: float
    end_lr: float
    weight_decay: float
    decay: str
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    adadelta_rho: float
    adadelta_eps: float
    momentum: float


def build_optimizer(learning: Learning, model: nn.Module) -> Optimizer:
    """The optimizer over the trained parameters; vectors (biases, norms) decay with --decay all."""
    trained = [param for param in model.parameters() if param.requires_grad]
    if learning.decay == "all":
        groups = [{"params": trained, "weight_decay": learning.weight_decay}]
    else:
        groups = [
            {
                "params": [param for param in trained if param.ndim > 1],
                "weight_decay": learning.weight_decay,
            },
            {"params": [param for param in trained if param.ndim <= 1], "weight_decay": 0.0},
        ]
    if learning.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=learning.lr, momentum=learning.momentum)
    if learning.optimizer == "adadelta":
        return torch.optim.Adadelta(
            groups, lr=learning.lr, rho=learning.adadelta_rho, eps=learning.adadelta_eps
        )
    betas = (learning.adam_beta1, learning.adam_beta2)
    kind = torch.optim.Adam if learning.optimizer == "adam" else torch.optim.AdamW
    # One fused kernel over all parameters: several times faster than a loop over them.
    return kind(groups, lr=learning.lr, betas=betas, eps=learning.adam_eps, fused=True)


def build_schedule(learning: Learning, optimizer: Optimizer, horizon: int) -> LambdaLR:
    """Linear warm-up, then decay to zero at step `horizon`, or constant.

    The polynomial goes to --end-lr by (1 - progress) ** power, as fairseq's and NVIDIA's BERT
    have it; linear is its case of power 1 and end 0.
    """
    power, end = 1.0, 0.0
    if learning.schedule == "polynomial":
        power, end = learning.power, learning.end_lr / learning.lr

    def factor(step: int) -> float:
        if step < learning.warmup_steps:
            return step / learning.warmup_steps
        if learning.schedule == "constant":
            return 1.0
        left = max(0.0, (horizon - step) / max(1, horizon - learning.warmup_steps))
        return float(end + (1 - end) * left**power)

    return LambdaLR(optimizer, factor)
