"""A small training in this process, alone or as one worker of a group, that keeps checkpoints.

It also has the functions with which two such trainings are compared.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from configs.settings.train import TrainConfig
from train.checkpoints import storage
from train.loop import build
from train.loop.trainer import Trainer
from train.records.schema import StepRecord
from train.records.sinks import Console, History, Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic
from train.tasks.base import Task

CPU = torch.device("cpu")
# 2048 samples: 8 steps per epoch; dropout is on
CONFIG = TrainConfig(
    task="synthetic", sync="single", lr=0.01, epochs=2, batch_size=256, device="cpu", warmup_steps=3
)
CUT = 11  # number of steps after which a training is cut, to be resumed


class Lines(Console):
    """Keeps what a run prints."""

    def __init__(self) -> None:
        super().__init__(speaks=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


class FullHistory(History):
    """Keeps the record of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[StepRecord] = []

    def add(self, record: StepRecord) -> None:
        super().add(record)
        self.steps.append(record)


def trainer_with_records(*given: Any, **named: Any) -> Trainer:
    """A `Trainer` whose history is a `FullHistory`."""
    with patch("train.loop.build.History", FullHistory):
        return build.trainer(*given, **named)


class Uncommon(synthetic.Synthetic):
    """A model with tied weights, a frozen part, or adapters beside another trained part."""

    def __init__(self, config: TrainConfig, kind: str) -> None:
        super().__init__(config)
        self.kind = kind

    def build_model(self) -> nn.Module:
        plain = super().build_model()
        if self.kind == "tied":
            return nn.Sequential(plain, last := nn.Linear(2, 2), nn.ReLU(), tied(last))
        if self.kind == "frozen":
            plain[0].requires_grad_(requires_grad=False)
            return plain
        from peft import LoraConfig, get_peft_model

        adapted = get_peft_model(plain, LoraConfig(r=2, target_modules=["0"]))
        plain[5].requires_grad_(requires_grad=True)  # which is not one of PEFT's adapters
        return adapted


def tied(layer: nn.Linear) -> nn.Linear:
    """Return another layer with the weight of `layer` and a bias of its own."""
    other = nn.Linear(2, 2)
    other.weight = layer.weight
    return other


def run(
    config: TrainConfig,
    run_dir: Path,
    at_step: Callable[[int], object] | None = None,
    task: Task | None = None,
    ranks: Ranks | None = None,
    device: torch.device = CPU,
) -> tuple[Trainer, list[str]]:
    """Train to the end; return the trainer and what was printed.

    `at_step` is called after each step with its number.
    """
    ranks, console = ranks or Ranks(), Lines()
    sinks = Sinks(run_dir, ranks.rank)
    folder = config.checkpoint_dir or run_dir / "checkpoints"
    task = task or synthetic.build(config)
    trainer = trainer_with_records(config, ranks, device, task, console, sinks, folder=folder)
    if at_step is not None:
        add = trainer.history.add
        trainer.history.add = lambda record: (add(record), at_step(record.step))
    try:
        trainer.resume()
        trainer.fit()
    finally:
        trainer.manager.close()
        sinks.close()
    return trainer, console.lines


def train(ranks: Ranks, config: TrainConfig, disk: Path, source: Path | None = None) -> Trainer:
    """Train the made-up task to its end, from the checkpoint in `source` if that is given."""
    config = replace(config, resume=None if source is None else str(source))
    return run(config, disk, ranks=ranks)[0]


def results(trainer: Trainer) -> dict[int, tuple[float, float, float]]:
    """Return loss, learning rate and gradient norm by step."""
    return {one.step: (one.loss, one.lr, one.grad_norm) for one in trainer.history.steps}


def bits(trainer: Trainer) -> list[bytes]:
    """Return the bytes of the model and of its optimizer's state."""
    objects = trainer.state.objects()
    objects["model"].own_tensors()
    parts = [
        {key: tensor.detach().numpy().tobytes() for key, tensor in objects[name].collected()}
        for name in ("model", "optimizer")
    ]
    return [part[key] for part in parts for key in sorted(part)]


def losses(history: FullHistory) -> list[float]:
    return [record.loss for record in history.steps]


def steps(folder: Path) -> list[int]:
    """Return the steps of which there are checkpoints, the newest first."""
    return [one.step for one in storage.list_checkpoints(folder)]


def assert_same_bits(ranks: Ranks, trainer: Trainer, what: str) -> None:
    """Check that parameters, buffers and optimizer state are bitwise equal on all ranks."""
    digest = hashlib.sha256()
    for tensor in (*params_of(trainer), *trainer.state.model.buffers(), *_states(trainer)):
        digest.update(tensor.detach().flatten().view(torch.uint8).numpy().tobytes())
    own = torch.tensor(list(digest.digest()[:16]), dtype=torch.uint8)
    digests = ranks.all_gather(own)
    assert (digests == own).all(), f"{what}: ranks differ: {digests.tolist()}"


def params_of(trainer: Trainer) -> list[torch.Tensor]:
    """Return the whole values of all parameters, on every rank."""
    return [values for _, values in trainer.grad_sync.values(trainer.state.model)]


def _states(trainer: Trainer) -> Iterator[torch.Tensor]:
    states = trainer.grad_sync.optimizer_state(trainer.state.model, trainer.state.optimizer)
    for _, state in states:
        yield from (state[key] for key in sorted(state) if torch.is_tensor(state[key]))


def assert_resumes(ranks: Ranks, config: TrainConfig, disk: Path, what: str) -> Trainer:
    """Return a whole run; check that a run that is cut and resumed has its losses and bits."""
    whole = train(ranks, config, disk / "whole")
    assert_same_bits(ranks, whole, what)
    train(ranks, replace(config, max_steps=CUT, checkpoint_every=str(CUT)), disk / "cut")
    resumed = train(ranks, config, disk / "again", disk / "cut" / "checkpoints")
    assert losses(resumed.history) == losses(whole.history)[CUT:], f"{what}: not the same losses"
    assert bits(resumed) == bits(whole), f"{what}: not the same bits"
    return whole
