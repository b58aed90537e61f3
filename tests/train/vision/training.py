"""One process that trains an image task by its recipe, as far as flags let it."""

from pathlib import Path

import torch

from configs import cli, plugins
from configs.schema import TrainConfig
from train.console import Console
from train.measure.sinks import Sinks
from train.measure.summary import History
from train.trainer import Trainer
from train.world import World


def train(folder: Path, *flags: str) -> tuple[History, Trainer]:
    (config,) = cli.parse([TrainConfig], ["--sync=single", *flags], prog="", description="")
    task = plugins.load("train.tasks", config.task)(config)
    task.prepare()
    assert task.is_prepared()
    world = World()
    sinks = Sinks(folder / "run", 0)
    sync = plugins.load("train.sync_modes", config.sync)(world, config)
    console = Console(speaks=False)
    trainer = Trainer(config, world, torch.device("cpu"), task, sync, console, sinks)
    history = trainer.fit()
    sinks.close()
    return history, trainer
