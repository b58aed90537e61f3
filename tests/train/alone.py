"""Train in this process alone, and make the settings of a small training on text."""

from pathlib import Path
from typing import Any

from configs import plugins
from configs.settings.train import TrainConfig
from tests.train.retained import FullHistory, run
from train.loop.trainer import Trainer
from train.tasks.base import Task


def train(
    config: TrainConfig, folder: Path, task: Task | None = None
) -> tuple[FullHistory, Trainer]:
    """Train to the end; records go to `folder / "run"`."""
    task = task or plugins.load("train.tasks", config.task)(config)
    task.prepare()
    assert task.is_prepared()
    trainer, _ = run(config, folder / "run", task=task)
    return trainer.history, trainer


def settings(folder: Path, **more: Any) -> TrainConfig:
    """Return settings of a task on text, whose data, vocabulary and model are in `folder`."""
    return TrainConfig(
        **{
            "data_dir": folder,
            "model": str(folder / "config.json"),
            "tokenizer": str(folder / "vocab.txt"),
            "cache_dir": folder / "cache",
            "sync": "single",
            "lr": 1e-2,
            "evaluate": "end",
            "device": "cpu",
        }
        | more
    )
