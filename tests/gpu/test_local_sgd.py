"""On a GPU: local_sgd averages the states of optimizers that count their steps on the CPU."""

import pytest
import torch
from torch import nn

from train.sync.base import SyncOptions
from train.sync.modes import local_sgd
from train.sync.ranks import Ranks

pytestmark = pytest.mark.needs("GPU")


@pytest.mark.parametrize("fused", [False, True])
def test_states_on_the_cpu_are_averaged_beside_those_on_the_gpu(fused):
    model = nn.Linear(4, 2, device="cuda")
    sync = local_sgd.build(Ranks(), SyncOptions(sync_every=8))
    model = sync.wrap(model)
    optimizer = sync.prepare(torch.optim.AdamW(model.parameters(), fused=fused))
    model(torch.ones(3, 4, device="cuda")).sum().backward()
    optimizer.step()
    sync.updated(model)
    before = {param: dict(state) for param, state in optimizer.state.items()}
    sync.make_replicas_equal(model)
    for param, state in optimizer.state.items():
        assert {key: value.device for key, value in state.items()} == {
            key: value.device for key, value in before[param].items()
        }
        assert state["step"] == 1
