"""A small network on generated points, which starts immediately, without text or downloads.

It is for tests of a launcher, a network or a sync mode. The two classes are two rings around the
origin, which a linear model cannot separate.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset, default_collate

from configs.settings.train import TrainConfig
from train.evaluation.metrics import Confusion
from train.model.rng import hash_seed
from train.tasks.base import Batch, Datasets, Metric, Output, Samples, Task

TRAIN_SAMPLES, EVALUATION_SAMPLES = 2048, 509  # 509 is prime: no number of ranks divides it
FEATURES, WIDTH = 8, 64


def points(size: int, seed: int) -> TensorDataset:
    """Points on two rings, (size, FEATURES), and the ring of each point."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (size,), generator=generator)
    directions = functional.normalize(torch.randn(size, FEATURES, generator=generator), dim=1)
    radii = 1.0 + labels[:, None] + 0.1 * torch.randn(size, 1, generator=generator)
    return TensorDataset(directions * radii, labels)


class Synthetic(Task):
    """A multilayer perceptron with one dropout, and points that it learns in a few steps."""

    def __init__(self, config: TrainConfig) -> None:
        self._seed = config.seed

    def build_datasets(self) -> Datasets:
        train = points(TRAIN_SAMPLES, hash_seed(self._seed, 1))
        return Datasets(train, {"": points(EVALUATION_SAMPLES, hash_seed(self._seed, 2))})

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2),
        )  # fmt: skip

    def collate(self, samples: Sequence[Any]) -> Batch:
        features, labels = default_collate(list(samples))
        return {"features": features, "labels": labels}

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        logits = model(batch["features"])
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Confusion(2, ("accuracy",))


build = Synthetic
