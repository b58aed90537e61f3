"""A twin holds the very same tensors, and what cannot be shared out is named."""

import threading

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from train.sync.base import SyncOptions
from train.sync.modes.fsdp import Fsdp, twin_of
from train.sync.ranks import Ranks


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


@pytest.mark.parametrize(
    ("name", "held", "reason"),
    [
        ("lock", threading.Lock(), "cannot pickle '_thread.lock' object"),
        ("scale", nn.Parameter(torch.ones(())), "support scalar parameters. Change scale to a 1D"),
    ],
)
def test_what_cannot_be_shared_out_is_named(name, held, reason, alone):
    model = Tied()
    setattr(model, name, held)
    with pytest.raises(UsageError, match=f"cannot take this model: .*{reason}.*; use zero1"):
        Fsdp(Ranks(), SyncOptions()).wrap(model)
