"""VGG on CIFAR-10 is the course's: size, recipe, files; and it trains."""

import pytest
import torch

from configs import cli
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.vision.files import write_cifar
from train.tasks import cs744


def recipe(*flags):
    flags = ["--task=cs744", "--sync=single", *flags]
    (config,) = cli.parse([TrainConfig], flags, prog="", description="")
    return config


def test_the_recipe_is_the_courses():
    config = recipe()
    assert (config.optimizer, config.lr, config.momentum) == ("sgd", 0.1, 0.9)
    assert (config.weight_decay, config.decay, config.schedule) == (1e-4, "all", "constant")
    assert (config.batch_size, config.epochs, config.log_every) == (256, 1, 20)
    assert (config.max_grad_norm, config.batchnorm, config.evaluate) == (0, "synced", "epoch")


def test_vgg11_has_the_courses_parameters():
    parameters = list(cs744.build(recipe()).build_model().parameters())
    assert len(parameters) == 34
    assert sum(parameter.numel() for parameter in parameters) == 9_231_114


@pytest.mark.parametrize("name", cs744.LAYERS)
def test_a_depth_is_a_flag(name):
    model = cs744.build(recipe(f"--model={name}")).build_model()
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    assert len(weights) + 2 == int(name.removeprefix("vgg"))  # its own has three linear layers


def test_an_unknown_depth_is_refused():
    with pytest.raises(UsageError, match="unknown 'resnet'; known: vgg11, vgg13, vgg16, vgg19"):
        cs744.build(recipe("--model=resnet"))


def test_it_trains_on_the_official_files_and_evaluates_after_the_epoch(tmp_path):
    flags = (f"--data-dir={write_cifar(tmp_path)}", "--batch-size=20", "--epochs=2", "--lr=0.01")
    history, trainer = alone.train(recipe(*flags), tmp_path)
    assert [record.samples for record in history.steps] == [20, 20] * 2
    _, last = history.evaluations
    assert set(last.metrics) == {"accuracy", "eval_loss"} and last.samples == 8
    assert trainer.datasets.train.epoch == 1
    again, _ = alone.train(recipe(*flags), tmp_path / "again")
    assert [record.loss for record in again.steps] == [record.loss for record in history.steps]


def test_only_the_training_images_are_augmented(tmp_path):
    task = cs744.build(recipe(f"--data-dir={write_cifar(tmp_path)}"))
    datasets = task.build_datasets()
    plain = datasets.evaluation[""]
    assert torch.equal(plain[2][0], plain.tensors[0][2])
    retained = [
        torch.equal(datasets.train[at][0], datasets.train.tensors[0][at]) for at in range(40)
    ]
    assert sum(retained) < 4
    before = datasets.train[0][0]
    task.start_epoch(1)
    assert not torch.equal(datasets.train[0][0], before)


def test_wrong_files_are_refused_before_training(tmp_path):
    with pytest.raises(UsageError, match="has no data_batch_1"):
        cs744.build(recipe(f"--data-dir={tmp_path}")).prepare()


def test_as_many_images_can_be_made_where_there_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = cs744.build(recipe("--data-dir=generated"))
    sets = task.build_datasets()
    train, tests = sets.train, sets.evaluation[""]
    assert (len(train), len(tests)) == (50_000, 10_000)
    assert -(-len(train) // task.config.batch_size) == 196  # iterations of the course's epoch
    again = cs744.build(recipe(f"--data-dir={tmp_path}/generated")).build_datasets()
    assert torch.equal(again.evaluation[""].tensors[0], tests.tensors[0])
    pixels, labels = tests.tensors
    shown = pixels[labels == 3].float().mean((0, 1, 3))
    assert shown[9:12].min() > shown[:9].max() + 60  # the band of its label
    (tmp_path / "generated").mkdir()
    with pytest.raises(UsageError, match="has no data_batch_1"):
        task.build_datasets()
