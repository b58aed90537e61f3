"""A step does no needless work: gradients are touched only if that changes them."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from configs.settings.train import TrainConfig
from train.loop import build
from train.loop.step import TrainedModel
from train.model.precision import Precision
from train.sync.base import SyncOptions
from train.sync.modes import single
from train.sync.ranks import Ranks

CPU = torch.device("cpu")


def step(model: nn.Module, **settings) -> TrainedModel:
    config = TrainConfig(task="synthetic", sync="single", device="cpu", **settings)
    optimizer = build.optimizer(config, model)
    precision, sync = Precision("fp32", CPU), single.build(Ranks(), SyncOptions())
    state = SimpleNamespace(model=model, precision=precision, optimizer=optimizer, grad_sync=sync)
    return TrainedModel(None, state, model, config.max_grad_norm)


@pytest.mark.parametrize("limit", [0.0, 3.0, 5.0, 5.0000005, 5.00001, 7.0])
def test_gradients_are_clipped_as_torch_does_and_else_not_touched(limit):
    model, other = (nn.Linear(2, 1, bias=False) for _ in range(2))
    for one in (model, other):
        one.weight.grad = torch.tensor([[3.0, -4.0]])
    version = model.weight.grad._version
    norm = step(model, max_grad_norm=limit).clip()
    want = nn.utils.clip_grad_norm_(other.parameters(), limit or math.inf)
    assert norm.item() == want.item() == 5.0
    assert torch.equal(model.weight.grad, other.weight.grad)
    assert (model.weight.grad._version > version) == (0 < limit <= 5.0000005)


def test_nan_norm_makes_every_gradient_nan():
    model = nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[math.nan, 1.0]])
    model.bias.grad = torch.ones(1)
    assert step(model, max_grad_norm=1.0).clip().isnan()
    assert model.bias.grad.isnan()
