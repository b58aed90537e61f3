"""A small training in this process, alone or as one worker of a group, that keeps checkpoints.

Beside it, what two such trainings are compared by.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from configs.settings.train import TrainConfig
from train.checkpoints import storage
from train.loop.trainer import Trainer
from train.records.sinks import Console, Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic
from train.tasks.base import Task

# 2048 samples: 8 steps an epoch; dropout is on
CONFIG = TrainConfig(
    task="synthetic", sync="single", lr=0.01, epochs=2, batch_size=256, device="cpu", warmup_steps=3
)


class Lines(Console):
    """Keeps what a run says."""

    def __init__(self) -> None:
        super().__init__(speaks=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def run(
    config: TrainConfig,
    run_dir: Path,
    at_step: Callable[[int], object] | None = None,
    task: Task | None = None,
    ranks: Ranks | None = None,
) -> tuple[Trainer, list[str]]:
    """Train to the end, and what was said; `at_step` is called after each step with its number."""
    ranks, console = ranks or Ranks(), Lines()
    sinks = Sinks(run_dir, ranks.rank)
    folder = config.checkpoint_dir or run_dir / "checkpoints"
    task = task or synthetic.build(config)
    cpu, writes = torch.device("cpu"), ranks.rank == 0
    trainer = Trainer(config, ranks, cpu, task, console, sinks, folder=folder, writes=writes)
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
    """Loss, learning rate and norm by step."""
    return {one.step: (one.loss, one.lr, one.grad_norm) for one in trainer.history.steps}


def bits(trainer: Trainer) -> list[bytes]:
    """Of the model, and of what its optimizer keeps."""
    objects = trainer.state.objects()
    objects["model"].own_tensors()
    parts = [
        {key: tensor.detach().numpy().tobytes() for key, tensor in objects[name].collected()}
        for name in ("model", "optimizer")
    ]
    return [part[key] for part in parts for key in sorted(part)]


def steps(folder: Path) -> list[int]:
    """Of which there are checkpoints, the newest first."""
    return [one.step for one in storage.list_checkpoints(folder)]
