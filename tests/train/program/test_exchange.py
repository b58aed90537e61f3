"""What ranks exchange after a step."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from train.checkpoints.manager import StepRequests
from train.program.exchange import exchange
from train.sync.ranks import Ranks


class Reads(TorchDispatchMode):
    """Counts how often a tensor's value is read, for which a program waits for a GPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function == torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", [0.0, torch.tensor(2.0)])
def test_exchange_of_a_loss_on_a_device_does_not_wait_for_it(norm):
    loss = torch.tensor(0.5, dtype=torch.float64)
    with Reads() as reads:
        shared = exchange(Ranks(), loss, StepRequests(save=True), norm)
    assert reads.count == 0
    assert (shared.loss, shared.norms) == (0.5, [float(norm)])
    assert shared.requests == StepRequests(save=True)
