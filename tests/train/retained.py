"""A small training in this process, as one worker of a group, that keeps checkpoints."""

from pathlib import Path

import torch

from configs import plugins
from configs.settings.train import TrainConfig
from train.checkpoints import resume
from train.checkpoints.manager import CheckpointManager
from train.distributed.world import World
from train.loop.trainer import Trainer
from train.records.console import Console
from train.records.sinks import Sinks
from train.tasks import synthetic

CPU = torch.device("cpu")


def train(world: World, config: TrainConfig, disk: Path, source: Path | None = None) -> Trainer:
    """Train the made-up task to its end, from the checkpoint in `source` if that is given."""
    sinks = Sinks(disk / "run", world.rank)
    checkpoints = CheckpointManager(
        config, world, CPU, disk / "checkpoints", sinks, writes=world.is_main
    )
    sync = plugins.load("train.sync.modes", config.sync)(world, config)
    console = Console(speaks=False)
    trainer = Trainer(
        config, world, CPU, synthetic.build(config), sync, console, sinks, checkpoints
    )
    if source is not None:
        found = resume.load(config, world, CPU, source, console, reads=world.is_main)
        assert found is not None
        trainer.resume(*found)
    trainer.fit()
    checkpoints.close()
    return trainer
