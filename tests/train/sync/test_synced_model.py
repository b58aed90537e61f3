"""`muster.sync` stands where DDP stood: the mean gradient, whatever a script does."""

import pytest
import torch
from torch import nn

import muster
from tests.train.sync import synced_model_worker
from tests.train.workers import run_on_ranks


@pytest.mark.parametrize("mode", ["all_reduce", "gather_scatter", "ddp"])
def test_gradients_are_the_mean_over_ranks(mode):
    run_on_ranks(synced_model_worker.__file__, 2, mode)


def test_a_process_alone_needs_no_group():
    model = muster.sync(nn.Linear(3, 1), "single")
    model(torch.ones(2, 3)).sum().backward()
    assert torch.equal(model.weight.grad, torch.full((1, 3), 2.0))


def test_without_a_group_several_ranks_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(muster.UsageError, match="WORLD_SIZE is 2, but this process has joined no"):
        muster.sync(nn.Linear(3, 1))
