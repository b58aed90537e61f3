"""Make settings from what a user types."""

from typing import Any

from configs import cli
from configs.settings.train import TrainConfig


def make_config(cls: type, **texts: Any) -> Any:
    """Make an instance of `cls` with these settings, each written as for its flag."""
    words = [cli.word(name, text) for name, text in texts.items()]
    (config,) = cli.parse([cls], words, prog="", description="")
    return config


def train_config(*argv: str) -> TrainConfig:
    """Return the trainer's settings for a command line."""
    (config,) = cli.parse([TrainConfig], argv, prog="train", description="")
    return config
