"""What ranks exchange after a step."""

import pytest
import torch

from train.checkpoints.manager import StepRequests
from train.program.exchange import exchange
from train.sync.ranks import Ranks


class OnDevice(torch.Tensor):
    """To read its value, the host would wait for the device."""

    def __float__(self):
        raise AssertionError("the host waits")


@pytest.mark.parametrize("norm", [2.0, torch.tensor(2.0)])
def test_exchange_of_loss_does_not_wait_for_device(norm):
    loss = torch.tensor(0.5, dtype=torch.float64).as_subclass(OnDevice)
    shared = exchange(Ranks(), loss, StepRequests(save=True), norm)
    assert (shared.loss, shared.norms) == (0.5, [2.0])
    assert shared.requests == StepRequests(save=True)
