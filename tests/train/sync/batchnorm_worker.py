"""Workers of one process group train a network with BatchNorm in every way.

Rank 0 also trains, alone, what each case must equal; every rank checks that all ranks have the same
bits.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import Mlp
from tests.train.matrix_worker import EVEN, IDLE, UNEVEN, Case, result, train
from tests.train.on_ranks import flat
from tests.train.retained import assert_same_bits, params_of
from train.sync.ranks import Ranks
from train.tasks.base import Batch

SAMPLES, STEPS = 58, 20  # the last batch of an epoch has only 10 samples
MODES = ("gather_scatter", "all_reduce", "ddp", "accelerate", "zero1", "fsdp")


def cases() -> list[Case]:
    """Return the cases of three ranks; instead of a task, they name a setting of BatchNorm."""
    matrix = [Case("local", "fp64", "all_reduce", 25.0, "even", 1, 0.0)]
    for index, mode in enumerate(MODES):
        # DDP's buckets are sent as soon as they are ready
        size, splits = 0.0 if mode == "ddp" else 25.0, (EVEN, UNEVEN, IDLE)
        matrix += [Case("synced", "fp64", mode, size, split, 1, 0.0) for split in splits]
        matrix.append(replace(matrix[index % 3 - 3], precision="fp32"))
        if index % 2 == 0:
            matrix.append(replace(matrix[-1], precision="fp64", accumulation=2))
    return matrix


def reference(case: Case) -> Case:
    """Return the case that it must equal: one process that sees the same micro-batches."""
    return replace(case.reference, task="synced", accumulation=case.accumulation)


class Pictures:
    """Noise far from zero, so that E[x^2] - E[x]^2 would show."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.points = torch.randn(SAMPLES, 3, 8, 8, generator=generator) + 30
        self.labels = torch.randint(4, (SAMPLES,), generator=generator)
        self.lengths = torch.ones(SAMPLES)  # all alike


class SmallVgg(nn.Module):
    """VGG's layers, one BatchNorm1d, and a layer that only a few samples use.

    That layer is created last and used first: on ranks that use it, DDP waits for it before it
    sends anything; on ranks that do not, DDP does not wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, affine=False, momentum=None)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4),
        )  # fmt: skip
        self.rare = nn.Conv2d(3, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        normed = self.norm(images)
        chosen = images.mean((1, 2, 3)) > 30.1  # about one sample in twelve
        if chosen.any():
            rows = chosen.nonzero().flatten()
            normed = normed.index_add(0, rows, self.rare(normed[chosen]))
        logits: Tensor = self.layers(normed)
        return logits


class PictureTask(Mlp):
    optimizer = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 1e-4, "decay": "all"}

    def __init__(self, config: TrainConfig, rank: int) -> None:
        super().__init__(config, rank)
        self.samples = Pictures()  # type: ignore[assignment]

    def network(self) -> nn.Module:
        return SmallVgg()

    def collate(self, samples: Sequence[int]) -> Batch:
        indices = torch.tensor(samples)
        return {"points": self.samples.points[indices], "labels": self.samples.labels[indices]}


def outcome(case: Case, ranks: Ranks) -> dict[str, Tensor]:
    """Return losses, final parameters and buffers; in float32 of one step: later ones diverge."""
    steps = 1 if case.precision == "fp32" else STEPS
    more = {"batchnorm": case.task, "warmup_steps": 0}
    history, model, trainer = train(case, ranks, PictureTask, steps, **more)
    assert_same_bits(ranks, trainer, case.name)
    numbers = result([step.loss for step in history.steps], params_of(trainer))
    return {**numbers, "buffers": flat(list(model.buffers()))}


def work(ranks: Ranks) -> dict[str, dict[str, Tensor]]:
    every = cases()
    outcomes = {case.name: outcome(case, ranks) for case in every}
    if ranks.rank == 0:
        outcomes |= {
            case.name: outcome(case, Ranks()) for case in {reference(case) for case in every}
        }
    return outcomes
