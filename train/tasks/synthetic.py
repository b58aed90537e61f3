"""A small network on generated points: starts at once, without text or download.

It is for tests of a launcher, a network or a sync mode. The two classes are two rings around the
origin, which a linear model cannot separate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from configs.settings.train import TrainConfig
from train.evaluation.metrics import Confusion
from train.model.rng import hash_seed
from train.tasks.base import Batch, Datasets, Metric, Output, Samples, Task

TRAIN_SAMPLES, EVALUATION_SAMPLES = 2048, 509  # 509 is prime: no number of ranks divides it
FEATURES, WIDTH = 8, 64


class Point(NamedTuple):
    features: Tensor  # (FEATURES,)
    label: int


class Points:
    """Points on two rings, made from a seed."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (size,), generator=generator)
        directions = functional.normalize(torch.randn(size, FEATURES, generator=generator), dim=1)
        radii = 1.0 + self.labels[:, None] + 0.1 * torch.randn(size, 1, generator=generator)
        self.features = directions * radii

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Point:
        return Point(self.features[index], int(self.labels[index]))


class Synthetic(Task):
    """A multilayer perceptron with one dropout, and points that it learns in a few steps."""

    def __init__(self, config: TrainConfig) -> None:
        self._seed = config.seed

    def build_datasets(self) -> Datasets:
        train = Points(TRAIN_SAMPLES, hash_seed(self._seed, 1))
        return Datasets(train, {"": Points(EVALUATION_SAMPLES, hash_seed(self._seed, 2))})

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, 2),
        )

    def collate(self, samples: Sequence[Point]) -> Batch:
        return {
            "features": torch.stack([point.features for point in samples]),
            "labels": torch.tensor([point.label for point in samples]),
        }

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        logits = model(batch["features"])
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Confusion(2, ("accuracy",))


build = Synthetic
