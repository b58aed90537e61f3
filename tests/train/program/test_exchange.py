"""What ranks exchange after a step."""

import math

import pytest
import torch

from train.checkpoints.manager import StepRequests
from train.program.exchange import Shared, exchange
from train.sync.ranks import Ranks


class OnDevice(torch.Tensor):
    """A tensor whose value the host could only read by waiting for the device."""

    def __float__(self):
        raise AssertionError("the host waits")


@pytest.mark.parametrize("norm", [2.0, torch.tensor(2.0)])
def test_exchange_of_loss_does_not_wait_for_device(norm):
    loss = torch.tensor(0.5, dtype=torch.float64).as_subclass(OnDevice)
    shared = exchange(Ranks(), loss, StepRequests(save=True), norm)
    assert (shared.loss, shared.norms) == (0.5, [2.0])
    assert shared.requests == StepRequests(save=True)


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        ([math.inf, -math.inf], math.nan),
        ([1e308, 1e308], math.inf),
        ([-1e308, -1e308, -math.inf], -math.inf),
        ([0.1, 0.2, 0.3], math.fsum([0.1, 0.2, 0.3]) / 3),
    ],
)
def test_mean_of_losses_beyond_all_numbers_is_nan_or_inf(losses, mean):
    rows = torch.tensor([[loss, 0, 0, 0, 0] for loss in losses], dtype=torch.float64)
    assert repr(Shared(rows, [5]).loss) == repr(mean)
