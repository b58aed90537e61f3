"""A small training in this process, as one worker of a group, that keeps checkpoints."""

from pathlib import Path

import torch

from configs.settings.train import TrainConfig
from train.loop.build import build_trainer, checkpoints_of, go_on
from train.loop.trainer import Trainer
from train.records.console import Console
from train.records.sinks import Sinks
from train.sync.ranks import Ranks
from train.tasks import synthetic

CPU = torch.device("cpu")


def train(ranks: Ranks, config: TrainConfig, disk: Path, source: Path | None = None) -> Trainer:
    """Train the made-up task to its end, from the checkpoint in `source` if that is given."""
    sinks = Sinks(disk / "run", ranks.rank)
    writes = ranks.rank == 0
    checkpoints = checkpoints_of(config, disk / "checkpoints", ranks, CPU, sinks, writes=writes)
    console = Console(speaks=False)
    trainer = build_trainer(
        config, ranks, CPU, synthetic.build(config), console, sinks, checkpoints=checkpoints
    )
    if source is not None:
        go_on(trainer, config, source, reads=writes)
    trainer.fit()
    checkpoints.close()
    return trainer
