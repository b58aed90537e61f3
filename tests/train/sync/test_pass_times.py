"""What is measured of a model's passes on one rank."""

import time

import pytest
import torch
from torch import nn

from train.sync.pass_times import PassTimer
from train.sync.ranks import waits


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on only where a test says so."""
    seconds = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    return seconds


def slow(points, clock):
    """`points`; their backward pass takes 3 s."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            return given.clone()

        @staticmethod
        def backward(ctx, gradient):
            clock[0] += 3
            return gradient

    return Slow.apply(points)


def test_what_a_pass_computes_before_the_model_is_no_waiting(clock):
    """A generator's backward pass goes through the discriminator first."""
    discriminator = nn.Linear(2, 1)
    timer = PassTimer(discriminator)
    before = waits.now()
    made = slow(torch.ones(1, 2, requires_grad=True), clock)
    discriminator(made).sum().backward()
    assert before.waited_until(waits.now()) == 0
    assert timer.take().backward_s == 3


def test_second_backward_pass_of_one_forward_pass_is_measured(clock):
    model = nn.Linear(2, 1)
    timer = PassTimer(model)
    losses = slow(model(torch.ones(1, 2)), clock)
    losses.sum().backward(retain_graph=True)
    losses.mean().backward()
    assert timer.take().backward_s == 6
