"""A run of one process that leaves checkpoints, and what two such runs are compared by."""

from pathlib import Path

import torch

from configs.settings.train import TrainConfig
from train.checkpoints import storage
from train.loop.build import Builder
from train.records.console import Console
from train.records.sinks import Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic

CPU = torch.device("cpu")
# 2048 samples: 8 steps an epoch; dropout is on
CONFIG = TrainConfig(
    task="synthetic", sync="single", lr=0.01, epochs=2, batch_size=256, device="cpu", warmup_steps=3
)


class Lines(Console):
    def __init__(self) -> None:
        super().__init__(speaks=False)
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)


def run(config, run_dir: Path, at_step=None, task=None):
    """One process alone; `at_step` is called with the trainer after each step."""
    console = Lines()
    sinks = Sinks(run_dir, 0)
    folder = config.checkpoint_dir or run_dir / "checkpoints"
    builder = Builder(config, Ranks(), CPU, task or synthetic.build(config), console, sinks)
    checkpoints = builder.checkpoints(folder, writes=True)
    trainer = builder.trainer(checkpoints)
    if at_step is not None:
        report = trainer._report
        trainer._report = lambda record: (report(record), at_step(record.step))
    try:
        trainer.go_on()
        trainer.fit()
    finally:
        checkpoints.close()
        sinks.close()
    return trainer, console.lines


def warnings(trainer) -> dict[int, tuple]:
    return {one.step: (one.loss, one.lr, one.grad_norm) for one in trainer.history.steps}


def bits(trainer) -> list[bytes]:
    states = [trainer.state.optimizer.state[param] for param in trainer.model.parameters()]
    retained = [one[key] for one in states for key in sorted(one)]
    tensors = [*trainer.model.parameters(), *retained]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


def steps(folder: Path) -> list[int]:
    return [one.step for one in storage.found(folder)]
