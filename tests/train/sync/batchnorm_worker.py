"""Workers of one process group train a network with BatchNorm in every way.

Rank 0 also does what each case must equal, by itself; every rank checks that all ranks hold the
same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import MatrixTask
from tests.train.matrix_worker import assert_same_bits
from tests.train.on_ranks import flat, trainer_of
from train.sync.ranks import Ranks
from train.tasks.base import Batch, Output, Samples

SAMPLES, BATCH, STEPS = 58, 16, 20  # the last batch of an epoch is cut: 10 samples
MODES = ("gather_scatter", "all_reduce", "ddp", "accelerate", "zero1", "fsdp")
PARTED = ("zero1", "fsdp")  # each rank has a part of every gradient
SPLITS = {2: ("even", "5,3", "1,0"), 3: ("even", "6,1,2", "0,1,1")}


@dataclass(frozen=True)
class Case:
    ranks: int
    mode: str
    split: str = "even"
    precision: str = "fp64"
    accumulation: int = 1
    batchnorm: str = "synced"
    steps: int = STEPS

    @property
    def name(self) -> str:
        return "|".join(map(str, vars(self).values()))

    @property
    def reference(self) -> "Case":
        """What it must equal: one process."""
        return replace(self, mode="single", ranks=1, split="even")


def cases(ranks: int) -> list[Case]:
    """The cases at one number of ranks."""
    found = [Case(ranks, mode, split) for mode in MODES for split in SPLITS[ranks]]
    for at, mode in enumerate(MODES):
        split = SPLITS[ranks][at % 3]
        found.append(Case(ranks, mode, split, precision="fp32", steps=1))
        if (at + ranks) % 2:
            found.append(Case(ranks, mode, split, accumulation=2))
    return [*found, Case(ranks, "all_reduce", batchnorm="local", steps=2)]


class Pictures:
    """Noise far from zero, so that E[x^2] - E[x]^2 would show."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.images = torch.randn(SAMPLES, 3, 8, 8, generator=generator) + 30
        self.labels = torch.randint(4, (SAMPLES,), generator=generator)


class SmallVgg(nn.Module):
    """VGG's layers, one BatchNorm1d, and a layer that only a few samples use.

    That layer comes last in order of creation and first in order of use: DDP waits for it before
    it sends anything on ranks that use it, and does not where it is unused.
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


class PictureTask(MatrixTask):
    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.samples = Pictures()  # type: ignore[assignment]

    def network(self) -> nn.Module:
        return SmallVgg()

    def lengths(self, samples: Samples) -> Tensor:  # all alike
        return torch.ones(SAMPLES)

    def collate(self, samples: Sequence[int]) -> Batch:
        at = torch.tensor(samples)
        return {"images": self.samples.images[at], "labels": self.samples.labels[at]}

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        logits = model(batch["images"])
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


def train(case: Case, ranks: Ranks) -> dict[str, Tensor]:
    """What came out of `case`: losses, the first step's gradients, final parameters, buffers."""
    config = TrainConfig(
        task="synthetic", sync=case.mode, batchnorm=case.batchnorm,  # type: ignore[arg-type]
        split=case.split if ranks.world_size > 1 else "even",
        accumulation=case.accumulation, precision=case.precision,  # type: ignore[arg-type]
        bucket_mb=0.0 if case.mode == "ddp" else 25.0,  # sent as soon as it is there
        optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=1e-4, decay="all", schedule="constant",
        max_grad_norm=0.0, batch_size=BATCH, epochs=10, max_steps=case.steps, device="cpu",
    )  # fmt: skip
    trainer = trainer_of(config, ranks, PictureTask(config))
    model = trainer.state.model
    grads: list[Tensor] = []

    def note(*_: Any) -> None:
        if grads:
            return
        if case.mode in PARTED and ranks.world_size > 1:
            shares = [trainer.grad_sync.shares[param] for param in model.parameters()]
            found = [share.whole(_gradient(share.part)) for share in shares]
        else:
            found = [_gradient(param) for param in model.parameters()]
        grads.append(flat(found))

    getattr(trainer.state.optimizer, "optimizer", trainer.state.optimizer).register_step_pre_hook(
        note
    )
    history = trainer.fit()
    assert_same_bits(ranks, trainer, case)  # type: ignore[arg-type]
    with trainer.grad_sync.whole(model):
        params = flat(list(model.parameters()))
    return {
        "losses": torch.tensor([step.loss for step in history.steps], dtype=torch.float64),
        "grads": grads[0],
        "params": params,
        "buffers": flat(list(model.buffers())),
    }


def _gradient(param: nn.Parameter) -> Tensor:
    return torch.zeros_like(param) if param.grad is None else param.grad


def work(ranks: Ranks) -> dict[str, dict[str, Tensor]]:
    found = {case.name: train(case, ranks) for case in cases(ranks.world_size)}
    if ranks.rank == 0:
        for case in {case.reference for case in cases(ranks.world_size)}:
            found[case.name] = train(case, Ranks())
    return found
