"""The measured times of a model's steps on one rank."""

import copy
import pickle
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from train.records import schema
from train.sync.ranks import waits
from train.sync.step_times import PHASES, StepTimer, timer_of


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock with one that only a test moves."""
    seconds = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


def slow(points, clock):
    """Return `points`, with a backward pass that takes 3 s."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            return given.clone()

        @staticmethod
        def backward(ctx, gradient):
            clock[0] += 3
            return gradient

    return Slow.apply(points)


class TwoSeconds(nn.Linear):
    """A layer whose forward pass takes 2 s, of which it waits 0.5 s for another rank."""

    def __init__(self, clock) -> None:
        super().__init__(2, 1)
        self.clock = clock

    def go_on(self, seconds: float) -> None:
        self.clock[0] += seconds

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        self.go_on(1.5)
        waits.during(self.go_on, 0.5)
        return super().forward(points)


def test_computing_before_the_model_is_not_waiting(clock):
    """A generator's backward pass goes through the discriminator first."""
    discriminator = nn.Linear(2, 1)
    timer = StepTimer(discriminator)
    made = slow(torch.ones(1, 2, requires_grad=True), clock)
    discriminator(made).sum().backward()
    seconds = timer.end_step().seconds()
    assert seconds["backward"] == 3 and seconds["sync"] == 0


def test_second_backward_pass_of_one_forward_pass_is_measured(clock):
    model = nn.Linear(2, 1)
    timer = StepTimer(model)
    losses = slow(model(torch.ones(1, 2)), clock)
    losses.sum().backward(retain_graph=True)
    losses.mean().backward()
    assert timer.end_step().seconds()["backward"] == 6


def test_phases_of_a_step_add_up_to_it(clock):
    model = TwoSeconds(clock)
    timer = StepTimer(model)
    for _ in range(2):
        clock[0] += 7  # of another step, or of an evaluation
        timer.begin()
        for _ in range(2):  # micro-batches
            clock[0] += 1
            loss = slow(model(torch.ones(1, 2)), clock).sum()
            clock[0] += 0.25
            loss.backward()
        clock[0] += 0.75
        waits.during(model.go_on, 0.25)
        seconds = timer.end_step().seconds()
        assert seconds == {
            "data": 2, "forward": 3, "backward": 6.5, "optimizer": 0.75, "sync": 1.25,
            "sync_in_passes": 1, "step": 13.5,
        }  # fmt: skip


def test_records_have_the_phases_that_are_timed():
    assert sorted(PHASES) == sorted(schema.PHASES)


def test_passes_without_gradients_are_no_passes_of_a_step(clock):
    model = TwoSeconds(clock)
    timer = StepTimer(model)
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert timer.end_step().seconds()["forward"] == 0


def test_recomputation_of_checkpointing_counts_as_backward(clock):
    model = TwoSeconds(clock)
    timer = StepTimer(model)
    points = torch.ones(1, 2, requires_grad=True)
    checkpoint(model, points, use_reentrant=False).sum().backward()
    seconds = timer.end_step().seconds()
    assert (seconds["forward"], seconds["backward"], seconds["sync"]) == (1.5, 1.5, 1)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda result: {"loss": 1.0, "parts": [result]},
        lambda result: (None, result),
        lambda result: SimpleNamespace(logits=result),
    ],
)
def test_backward_pass_is_noticed_whatever_a_model_returns(clock, wrapped):
    class Wrapping(nn.Linear):
        def forward(self, points: torch.Tensor) -> Any:
            result.append(super().forward(points))
            return wrapped(result[-1])

    result: list[torch.Tensor] = []
    model = Wrapping(2, 1)
    timer = StepTimer(model)
    model(torch.ones(1, 2))
    slow(result[-1], clock).sum().backward()
    assert timer.end_step().seconds()["backward"] == 3


def test_step_ends_once_for_all_who_take_its_times(clock):
    timer = StepTimer(nn.Linear(2, 1))
    clock[0] += 1
    ended = timer.end_step()  # as `muster.record` does
    assert timer.take_step() is ended
    clock[0] += 2
    assert timer.take_step().seconds()["step"] == 2  # in a loop without records


def test_timed_models_can_be_copied_and_pickled(clock):
    model = nn.Linear(2, 1)
    assert timer_of(model) is timer_of(model)
    model(torch.ones(1, 2)).sum().backward()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.ones(1, 2)).sum().backward()


class Event:
    """A stand-in for torch.cuda.Event; the device needs 5 ms from one event to the next."""

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


class OnGpu(nn.Linear):
    def parameters(self, recurse: bool = True) -> Any:
        return [SimpleNamespace(is_cuda=True, device="cuda")]


def test_gpu_step_timer_waits_for_events_only_at_end(monkeypatch):
    stream = ["training"]
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream[0])
    model = OnGpu(2, 1)
    timer = StepTimer(model)
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    waits.during(lambda: waits.during(int))  # nested: one wait
    stream[0] = "of FSDP"
    waits.during(int)  # not in the stream of the phases
    times = timer.end_step()
    assert (Event.made, Event.waited_for) == (8, 0)
    ms = {name: round(1000 * taken) for name, taken in times.seconds().items()}
    assert ms == {
        "data": 5, "forward": 5, "backward": 5, "optimizer": 10, "sync": 10,
        "sync_in_passes": 5, "step": 35,
    }  # fmt: skip
    assert Event.waited_for == Event.made  # each may be in another stream
