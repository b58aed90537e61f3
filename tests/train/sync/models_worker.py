"""One of three workers of one process group that trains unusual models: `models_worker.py FOLDER`.

Started by test_models.py. Rank 0 also trains them by itself, and writes what came out of both.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from configs.settings.train import TrainConfig
from muster.errors import MusterError, UsageError
from tests.train.matrix_tasks import MatrixTask
from tests.train.matrix_worker import NoSinks, assert_same_bits
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import Builder, ranks_of
from train.loop.trainer import Trainer
from train.records.console import Console
from train.sync.ranks import Ranks
from train.tasks.base import Batch, Output
from train.worker import end_process

MODES = ("all_reduce", "gather_scatter", "ddp", "accelerate", "zero1", "fsdp")
OF_ANY_TYPE = (*(mode for mode in MODES if mode != "fsdp"), "local_sgd")  # of parameters

OF_CHANGING = tuple(mode for mode in MODES if mode != "fsdp")


class Masked(nn.Module):
    """Constants with infinities and odd numbers, a running mean, and a cache that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))
        self.register_buffer("frequencies", 10000 ** -(torch.arange(6) / 6))
        self.register_buffer("turns", torch.polar(torch.ones(6), torch.arange(6) / 7))
        self.register_buffer("running", torch.zeros(6))
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("places", torch.zeros(0))

    def forward(self, points: Tensor) -> Tensor:
        if self.training:
            self.running.data.lerp_(points.mean(0), 0.1)  # behind autograd's version counter
            self.steps += 1
        if len(points) > len(self.places):
            self.register_buffer("places", torch.arange(len(points)).to(points))
        scores = points[:, :, None] * points[:, None, :] * self.frequencies + self.mask
        mixed = scores.softmax(-1) @ points[:, :, None]
        turned = (mixed[..., 0] * self.turns).imag
        logits: Tensor = self.layer(turned) + 1e-3 * self.places[: len(points), None]
        return logits


class WithChild(nn.Module):
    """A model whose part is called as DDP's own is."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, points: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.module(points)))
        return logits


class Halves(nn.Module):
    """A frozen part and a trained one in bfloat16, and one in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.low = nn.Linear(6, 24).bfloat16(), nn.Linear(24, 24).bfloat16()
        self.frozen.requires_grad_(requires_grad=False)
        self.head = nn.Linear(24, 2)

    def forward(self, points: Tensor) -> Tensor:
        hidden = torch.tanh(self.low(torch.tanh(self.frozen(points.bfloat16()))))
        logits: Tensor = self.head(hidden.float())
        return logits


class Changing(nn.Module):
    """One part is frozen for some steps, one is used in some steps only: not in the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.calls = 0

    def forward(self, points: Tensor) -> Tensor:
        self.calls += self.training
        self.first.requires_grad_(not 3 <= self.calls < 6)
        hidden = torch.tanh(self.first(points))
        if self.calls % 4 != 1:
            hidden = torch.tanh(self.second(hidden))
        logits: Tensor = self.head(hidden)
        return logits


class ModelTask(MatrixTask):
    """Classes of points, by any network."""

    def __init__(self, config: TrainConfig, rank: int, network: type[nn.Module]) -> None:
        super().__init__(config, rank)
        self.network = network  # type: ignore[method-assign]

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        logits = model(batch["points"])
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


class Broken(ModelTask):
    """The gradient of rank 1 becomes infinite in step 3."""

    calls = 0

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        output = super().forward(model, batch)
        self.calls += 1
        if self.rank == 1 and self.calls == 3:
            output.loss.register_hook(lambda grad: grad * torch.inf)
        return output


def trainer_of(
    ranks: Ranks,
    mode: str,
    network: type[nn.Module],
    kind: type[ModelTask] = ModelTask,
    **given: Any,
) -> Trainer:
    settings = {"split": "3,1,0", "precision": "fp64", "optimizer": "sgd", "lr": 0.1}
    settings |= {"max_steps": 12, **given}
    if ranks.world_size == 1:
        settings["split"] = "even"
    config = TrainConfig(
        task="synthetic", sync=mode, batch_size=16, epochs=5, device="cpu",
        length_balance=False, **settings,
    )  # fmt: skip
    task, sinks = kind(config, ranks.rank, network), NoSinks()
    console = Console(speaks=False)
    return Builder(config, ranks, torch.device("cpu"), task, console, sinks).trainer()  # type: ignore[arg-type]


def trained(ranks: Ranks, mode: str, network: type[nn.Module], **given: Any) -> Mapping[str, Any]:
    """What came out of it: losses, and the model's tensors by name."""
    trainer = trainer_of(ranks, mode, network, **given)
    history = trainer.fit()
    if network is not Masked:  # whose cache is each rank's own
        assert_same_bits(ranks, trainer, mode)  # type: ignore[arg-type]
    with trainer.grad_sync.whole(trainer.state.model):
        state = trainer.state.model.state_dict()
        return {
            "losses": torch.tensor([step.loss for step in history.steps], dtype=torch.float64),
            "state": {name: tensor.detach().clone() for name, tensor in state.items()},
        }


def refusal(ranks: Ranks) -> str:
    """What this rank says of a gradient that stops being a number on rank 1."""
    trainer = trainer_of(ranks, "local_sgd", WithChild, Broken, split="even")
    try:
        trainer.fit()
    except MusterError as error:
        return str(error)
    return "nothing"


def sums_of_a_step(ranks: Ranks, mode: str, network: type[nn.Module]) -> float:
    """How many all_reduces a step starts, by torch's profiler."""
    counts = []
    for steps in (2, 7):
        trainer = trainer_of(ranks, mode, network, max_steps=steps)
        with torch.profiler.profile() as profiler:
            trainer.fit()
        names = [event.name for event in profiler.events()]
        counts.append(names.count("gloo:all_reduce"))
    return (counts[1] - counts[0]) / 5


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        found: dict[str, Any] = {"refusal": refusal(ranks)}
        for mode in MODES:
            found[f"masked|{mode}"] = trained(ranks, mode, Masked)
            found[f"child|{mode}"] = trained(ranks, mode, WithChild)
        try:
            trainer_of(ranks, "fsdp", Halves, precision="fp32")
        except UsageError as error:
            found["halves|fsdp"] = str(error)
        for mode in OF_ANY_TYPE:
            given = {"precision": "fp32", "optimizer": "adamw", "lr": 1e-3}
            found[f"halves|{mode}"] = trained(ranks, mode, Halves, **given)
        decays = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.3}
        for mode in OF_CHANGING:
            found[f"changing|{mode}"] = trained(ranks, mode, Changing, **decays)
        for mode in ("all_reduce", "ddp"):
            found[f"sums|{mode}"] = sums_of_a_step(ranks, mode, Changing)
        if ranks.rank == 0:
            found["masked"] = trained(Ranks(), "single", Masked)
            found["child"] = trained(Ranks(), "single", WithChild)
            found["changing"] = trained(Ranks(), "single", Changing, **decays)
            found["halves"] = trained(Ranks(), "single", Halves, **given)
        torch.save(found, folder / f"rank_{ranks.rank}.pt")


if __name__ == "__main__":
    main()
    end_process(0)
