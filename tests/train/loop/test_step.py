"""One step costs what it has to: what does nothing to the gradient does not touch it."""

import math
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from configs.settings.train import TrainConfig
from train.loop import build
from train.loop.step import PhaseTimer, Step
from train.model.precision import Precision
from train.sync.base import SyncOptions
from train.sync.modes import single
from train.sync.ranks import Ranks

CPU = torch.device("cpu")


def step(model: nn.Module, **settings) -> Step:
    config = TrainConfig(task="synthetic", sync="single", device="cpu", **settings)
    optimizer = build.optimizer(config, model)
    precision, sync = Precision("fp32", CPU), single.build(Ranks(), SyncOptions())
    state = SimpleNamespace(model=model, precision=precision, optimizer=optimizer, grad_sync=sync)
    return Step(None, state, model, config.max_grad_norm)


@pytest.mark.parametrize("limit", [0.0, 3.0, 5.0, 5.0000005, 5.00001, 7.0])
def test_gradients_are_clipped_as_torch_does_and_else_not_touched(limit):
    model, other = (nn.Linear(2, 1, bias=False) for _ in range(2))
    for one in (model, other):
        one.weight.grad = torch.tensor([[3.0, -4.0]])
    version = model.weight.grad._version
    norm = step(model, max_grad_norm=limit)._clip()
    want = nn.utils.clip_grad_norm_(other.parameters(), limit or math.inf)
    assert norm.item() == want.item() == 5.0
    assert torch.equal(model.weight.grad, other.weight.grad)
    assert (model.weight.grad._version > version) == (0 < limit <= 5.0000005)


def test_a_norm_that_is_no_number_reaches_every_gradient():
    model = nn.Linear(2, 1)
    model.weight.grad = torch.tensor([[math.nan, 1.0]])
    model.bias.grad = torch.ones(1)
    assert step(model, max_grad_norm=1.0)._clip().isnan()
    assert model.bias.grad.isnan()


def test_phases_of_one_name_add_up():
    timer = PhaseTimer(CPU)
    for name in ("forward", "sync", "forward"):
        with timer.phase(name):
            time.sleep(0.01)
    seconds = timer.seconds
    assert list(seconds) == ["forward", "sync"]
    assert seconds["forward"] >= 0.02 and seconds["sync"] >= 0.01
    assert timer.total_s() >= sum(seconds.values())


class Event:
    """As torch.cuda's, of a device that needs 5 ms from one to the next."""

    made = 0
    waited_for = 0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream):
        Event.made += 1
        self.at_ms = 5.0 * Event.made

    def synchronize(self):
        Event.waited_for += 1

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_on_a_gpu_events_are_recorded_and_waited_for_at_the_end_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    timer = PhaseTimer(torch.device("cuda"))
    for name in ("forward", "backward", "forward"):
        with timer.phase(name):
            pass
    assert Event.made == 7 and Event.waited_for == 0
    assert timer.seconds == pytest.approx({"forward": 0.01, "backward": 0.005})
    assert timer.total_s() == pytest.approx(0.035)
    assert Event.waited_for > 0
