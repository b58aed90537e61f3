"""The meaning of the trainer's settings."""

import dataclasses

import pytest

from configs.settings.launch import (
    LaunchConfig,
    ProgramConfig,
)
from configs.settings.train import ByHand, TrainConfig


def test_a_split_has_one_weight_per_worker():
    config = TrainConfig(split="3,1,0")
    assert config.split_weights() == (3.0, 1.0, 0.0)
    assert list(config.world_problems(3)) == []
    assert len(list(config.world_problems(4))) == 1
    assert TrainConfig().split_weights() is None  # an even split suits any number of workers
    assert list(TrainConfig().world_problems(7)) == []


@pytest.mark.parametrize("cls", [TrainConfig, LaunchConfig, ProgramConfig, ByHand])
def test_every_setting_has_its_line_of_help(cls):
    for item in dataclasses.fields(cls):
        text = item.metadata["help"]
        assert text and "\n" not in text and not text.endswith("."), item.name


@pytest.mark.parametrize(
    ("keep_best", "metric", "lowest"),
    [
        ("accuracy", "accuracy", False),
        ("eval_loss_mm", "eval_loss_mm", True),
        ("perplexity", "perplexity", True),
        ("my_metric_f1", "my_metric_f1", False),
        ("accuracy:min", "accuracy", True),
        ("eval_loss:max", "eval_loss", False),
        ("mine:max", "mine", False),
    ],
)
def test_direction_of_the_best_is_known_or_given(keep_best, metric, lowest):
    assert TrainConfig(keep_best=keep_best).best() == (metric, lowest)
