"""A twin holds the very same tensors, and what cannot be shared out is named."""

import threading

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from train.sync.modes.fsdp import twin_of, unshareable


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(2))


def test_a_twin_has_the_same_parameters_and_buffers_in_modules_of_its_own():
    model = Tied()
    twin = twin_of(model)
    assert twin.first is not model.first
    assert twin.first.weight is twin.second.weight is model.first.weight
    assert twin.seen is model.seen
    twin.seen = torch.ones(3)
    assert model.seen is twin.seen


def test_what_cannot_be_copied_is_said():
    model = Tied()
    model.lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot pickle '_thread.lock' object; use zero1"):
        twin_of(model)


def test_a_number_is_refused_by_name():
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.ones(()))
    (problem,) = unshareable(model)
    assert problem == (
        "sync mode fsdp cannot share out the model's parameter scale, a number without a "
        "dimension; give it the shape (1,), or use zero1"
    )
