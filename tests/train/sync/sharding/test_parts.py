"""Optimizers that need whole parameters are refused; the others update parts of them."""

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from train.sync.base import SyncOptions
from train.sync.modes.zero1 import Zero1
from train.sync.ranks import Ranks
from train.sync.sharding.parts import BY_VALUE, Shard

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)


def sharded(optimizer_of, rank=0):
    """Return a parameter of five values, its shard on one of two ranks, and an optimizer for it."""
    param = nn.Parameter(torch.arange(5.0))
    shard = Shard(param, Ranks(rank, 2), row=3)
    mode = Zero1(Ranks(rank, 2), SyncOptions())
    mode.shards[param] = shard
    return param, shard, mode.prepare(optimizer_of([param]))


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in BY_VALUE), *((kind, {"fused": True}) for kind in FUSED)],
)
def test_optimizer_steps_on_shards_equal_those_on_the_whole_parameter(kind, options):
    gradient = torch.tensor([0.5, -1.0, 0.0, 2.0, 3.0])
    whole = nn.Parameter(torch.arange(5.0))
    plain = kind([whole], lr=0.1, weight_decay=0.1, **options)
    stepped = torch.empty(5)
    parts = [
        sharded(lambda params: kind(params, lr=0.1, weight_decay=0.1, **options), rank)
        for rank in range(2)
    ]
    for _ in range(3):
        whole.grad = gradient.clone()
        plain.step()
        for _, shard, optimizer in parts:
            shard.part.grad = gradient[shard.range].clone()
            optimizer.step()
    for param, shard, _ in parts:
        stepped[shard.range] = param.detach()[shard.range]
    torch.testing.assert_close(stepped, whole.detach())


def test_optimizer_that_needs_whole_parameters_is_refused():
    with pytest.raises(UsageError, match=r"LBFGS .* whole parameters"):
        sharded(torch.optim.LBFGS)
