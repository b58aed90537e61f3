"""Optimizers that look at a parameter as a whole are refused; the others step parts of it."""

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from train.sync.base import SyncOptions
from train.sync.modes.zero1 import Zero1
from train.sync.ranks import Ranks
from train.sync.sharding.parts import BY_VALUE, Share

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def given(optimizer_of, rank=0):
    """A parameter of five values, and an optimizer that has got this rank's part of it, of two."""
    param = nn.Parameter(torch.arange(5.0))
    share = Share(param, Ranks(rank, 2), row=3)
    mode = Zero1(Ranks(rank, 2), SyncOptions())
    mode.shares[param] = share
    return param, share, mode.prepare(optimizer_of([param]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in BY_VALUE), *((kind, {"fused": True}) for kind in FUSED)],
)
def test_both_ranks_steps_are_those_of_the_whole_parameter(kind, options):
    gradient = torch.tensor([0.5, -1.0, 0.0, 2.0, 3.0])
    whole = nn.Parameter(torch.arange(5.0))
    plain, found = kind([whole], lr=0.1, weight_decay=0.1, **options), torch.empty(5)
    parts = [
        given(lambda params: kind(params, lr=0.1, weight_decay=0.1, **options), rank)
        for rank in range(2)
    ]
    for _ in range(3):
        whole.grad = gradient.clone()
        plain.step()
        for _, share, optimizer in parts:
            share.part.grad = gradient[share.own].clone()
            optimizer.step()
    for param, share, _ in parts:
        found[share.own] = param.detach()[share.own]
    torch.testing.assert_close(found, whole.detach())


def test_an_optimizer_of_whole_parameters_is_refused():
    with pytest.raises(UsageError, match="LBFGS is not known to treat each value for itself"):
        given(torch.optim.LBFGS)
