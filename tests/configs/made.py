"""Settings made of what is typed."""

from typing import Any

from configs import cli
from configs.settings.train import TrainConfig


def make_config(cls: type, **texts: Any) -> Any:
    """An instance of `cls` with these settings, each as its flag has it."""
    words = [cli.word(name, text) for name, text in texts.items()]
    (config,) = cli.parse([cls], words, prog="", description="")
    return config


def train_config(*argv: str) -> TrainConfig:
    """The trainer's settings of a command line."""
    (config,) = cli.parse([TrainConfig], argv, prog="train", description="")
    return config
