"""A small training in this process, as one worker of a group, that keeps checkpoints."""

from dataclasses import replace
from pathlib import Path

import torch

from configs.settings.train import TrainConfig
from train.loop.build import Builder
from train.loop.trainer import Trainer
from train.records.console import Console
from train.records.sinks import Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic

CPU = torch.device("cpu")


def train(ranks: Ranks, config: TrainConfig, disk: Path, source: Path | None = None) -> Trainer:
    """Train the made-up task to its end, from the checkpoint in `source` if that is given."""
    config = replace(config, resume=None if source is None else str(source))
    sinks, console = Sinks(disk / "run", ranks.rank), Console(speaks=False)
    builder = Builder(config, ranks, CPU, synthetic.build(config), console, sinks)
    checkpoints = builder.checkpoints(disk / "checkpoints", writes=ranks.rank == 0)
    trainer = builder.trainer(checkpoints)
    trainer.go_on()
    trainer.fit()
    checkpoints.close()
    return trainer
