"""One process that trains an image task by its recipe, as far as flags let it."""

from pathlib import Path

import torch

from configs import cli, plugins
from configs.settings.train import TrainConfig
from train.distributed.world import World
from train.loop.trainer import Trainer
from train.records.console import Console
from train.records.sinks import Sinks
from train.records.summary import History


def train(folder: Path, *flags: str) -> tuple[History, Trainer]:
    (config,) = cli.parse([TrainConfig], ["--sync=single", *flags], prog="", description="")
    task = plugins.load("train.tasks", config.task)(config)
    task.prepare()
    assert task.is_prepared()
    world = World()
    sinks = Sinks(folder / "run", 0)
    sync = plugins.load("train.sync.modes", config.sync)(world, config)
    console = Console(speaks=False)
    trainer = Trainer(config, world, torch.device("cpu"), task, sync, console, sinks)
    history = trainer.fit()
    sinks.close()
    return history, trainer
