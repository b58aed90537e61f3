"""One process that trains an image task by its recipe, as far as flags let it."""

from pathlib import Path

import torch

from configs import cli, plugins
from configs.settings.train import TrainConfig
from train.loop.build import Builder
from train.loop.trainer import Trainer
from train.records.console import Console
from train.records.sinks import Sinks
from train.records.summary import History
from train.sync.ranks import Ranks


def train(folder: Path, *flags: str) -> tuple[History, Trainer]:
    (config,) = cli.parse([TrainConfig], ["--sync=single", *flags], prog="", description="")
    task = plugins.load("train.tasks", config.task)(config)
    task.prepare()
    assert task.is_prepared()
    sinks = Sinks(folder / "run", 0)
    console = Console(speaks=False)
    trainer = Builder(config, Ranks(), torch.device("cpu"), task, console, sinks).trainer()
    history = trainer.fit()
    sinks.close()
    return history, trainer
