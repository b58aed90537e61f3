"""HetSeq's MNIST example: its recipe, its network; and it learns."""

import pytest

from configs import cli
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.vision.files import write_mnist
from train.tasks import mnist


def recipe(*flags):
    flags = ["--task=mnist", "--sync=single", *flags]
    (config,) = cli.parse([TrainConfig], flags, prog="", description="")
    return config


def test_the_recipe_and_the_network_are_hetseqs():
    config = recipe()
    assert (config.optimizer, config.lr, config.batch_size) == ("adadelta", 1.01, 64)
    assert (config.adadelta_rho, config.adadelta_eps, config.weight_decay) == (0.9, 1e-6, 0)
    assert (config.schedule, config.schedule_steps, config.max_grad_norm) == (
        "polynomial",
        50000,
        100,
    )
    model = mnist.build(config).build_model()
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert shapes == [(32, 1, 3, 3), (64, 32, 3, 3), (128, 9216), (10, 128)]
    assert [m.p for m in model.modules() if type(m).__name__ == "Dropout"] == [0.25, 0.5]
    with pytest.raises(UsageError, match="unknown 'x'; known: cnn"):
        mnist.build(recipe("--model=x"))


def test_it_learns_from_packed_files_and_evaluates_at_the_end(tmp_path):
    folder = write_mnist(tmp_path / "MNIST" / "raw", size=160).parents[1]
    config = recipe(f"--data-dir={folder}", "--batch-size=40", "--epochs=8")
    history, _ = alone.train(config, tmp_path)
    assert [one.step for one in history.evaluations] == [32]
    assert history.evaluations[0].metrics["accuracy"] > 0.8
