"""The mean over samples, which training takes, is another thing than the mean of ranks' means."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from train.batches.plan import BatchPlan, StepPlan

SAMPLES, BATCH, STEPS = 640, 64, 100
WEIGHTS = (40.0, 16.0, 5.0, 3.0)


def trained(split: tuple[float, ...], scale: Callable[[StepPlan, float], float]) -> torch.Tensor:
    """Parameters after 100 steps of SGD, with the ranks of `split` played one after the other."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
    labels = (points[:, 0] * points[:, 1] > 0).long()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    plan = BatchPlan(SAMPLES, BATCH, split, 1, seed=7)
    done = 0
    for epoch in range(STEPS * BATCH // SAMPLES):
        for of_ranks in zip(*(plan.epoch(epoch, rank) for rank in range(len(split))), strict=True):
            for step in of_ranks:
                (micro,) = step.micro_batches
                at = list(micro.indices)
                loss = functional.cross_entropy(model(points[at]), labels[at])
                # then the plain mean over ranks, as every sync mode takes it
                (loss * scale(step, micro.weight) / len(split)).backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    assert done == STEPS
    return torch.cat([param.detach().flatten() for param in model.parameters()])


def test_training_takes_the_mean_over_samples():
    alone = trained((1.0,), lambda step, weight: weight)
    split = trained(WEIGHTS, lambda step, weight: weight)
    means = trained(WEIGHTS, lambda step, weight: 1.0)
    assert (split - alone).abs().max() < 1e-12
    assert (means - alone).abs().max() > 0.1
