"""VGG on CIFAR-10 has the course's size, recipe and files, and it trains.

Of CIFAR-10's files, only the published versions are read.
"""

import hashlib
import pickle
from functools import partial

import numpy
import pytest
import torch

from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.vision import files
from tests.train.tasks.vision.files import CIFAR_BATCHES, cifar_batch, write_cifar
from train.tasks import cs744

recipe = partial(files.recipe, "cs744")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Make the official folder with small files that count as the published ones."""
    folder = write_cifar(tmp_path) / "cifar-10-batches-py"
    of_files = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    monkeypatch.setattr(cs744, "PUBLISHED", of_files)
    return folder


def test_cs744_recipe_and_vgg_are_those_of_the_course():
    config = recipe()
    assert (config.optimizer, config.lr, config.momentum) == ("sgd", 0.1, 0.9)
    assert (config.weight_decay, config.decay, config.schedule) == (1e-4, "all", "constant")
    assert (config.batch_size, config.epochs, config.log_every) == (256, 1, 20)
    assert (config.max_grad_norm, config.batchnorm, config.evaluate) == (0, "synced", "epoch")
    parameters = list(cs744.build(config).build_model().parameters())
    assert len(parameters) == 34
    assert sum(parameter.numel() for parameter in parameters) == 9_231_114


def test_vgg_depth_is_chosen_by_model_and_unknown_depth_is_refused():
    for name in cs744.LAYERS:
        model = cs744.build(recipe(f"--model={name}")).build_model()
        weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        assert len(weights) + 2 == int(name.removeprefix("vgg"))  # the original has 3 linear layers
    with pytest.raises(UsageError, match=r"unknown 'resnet'; .* vgg11, vgg13, vgg16, vgg19"):
        cs744.build(recipe("--model=resnet"))


def test_cs744_trains_on_cifar_files_and_evaluates_each_epoch(home, tmp_path):
    flags = (f"--data-dir={home}", "--batch-size=20", "--epochs=2", "--lr=0.01")
    history, trainer = alone.train(recipe(*flags), tmp_path)
    assert [record.samples for record in history.steps] == [20, 20] * 2
    _, last = history.evaluations
    assert set(last.metrics) == {"accuracy", "eval_loss"} and last.samples == 8
    assert trainer.datasets.train.epoch == 1


def test_only_training_images_are_augmented(home):
    task = cs744.build(recipe(f"--data-dir={home}"))
    train, evaluation = task.build_datasets()
    plain = evaluation[""]
    assert torch.equal(plain[2][0], plain.tensors[0][2])
    unchanged = [torch.equal(train[at][0], train.tensors[0][at]) for at in range(40)]
    assert sum(unchanged) < 4


def test_generated_images_are_as_many_as_cifars(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = cs744.build(recipe("--data-dir=generated"))
    sets = task.build_datasets()
    train, tests = sets.train, sets.evaluation[""]
    assert (len(train), len(tests)) == (50_000, 10_000)
    again = cs744.build(recipe(f"--data-dir={tmp_path}/generated")).build_datasets()
    assert torch.equal(again.evaluation[""].tensors[0], tests.tensors[0])
    pixels, labels = tests.tensors
    shown = pixels[labels == 3].float().mean((0, 1, 3))
    assert shown[9:12].min() > shown[:9].max() + 60  # the band of its label
    (tmp_path / "generated").mkdir()
    with pytest.raises(UsageError, match="has no data_batch_1"):
        task.build_datasets()


def refusal_of_files(folder):
    with pytest.raises(UsageError) as error:
        cs744.build(recipe(f"--data-dir={folder}")).prepare()
    return str(error.value)


@pytest.mark.parametrize("below", [True, False])
def test_cifar_folder_and_the_one_above_it_are_read(home, below):
    sets = cs744.read(home.parent if below else home)
    made = [cifar_batch(8, seed) for seed in range(6)]
    wanted = numpy.concatenate([batch["data"] for batch in made[:5]])
    assert sets["train"].tensors[0].shape == (40, 3, 32, 32) and len(sets["test"]) == 8
    assert torch.equal(sets["train"].tensors[0].flatten(1), torch.from_numpy(wanted))
    labels = [label for batch in made[:5] for label in batch["labels"]]
    assert sets["train"].tensors[1].tolist() == labels
    assert sets["test"][3][1] == made[5]["labels"][3]


class Evil:
    def __reduce__(self):
        return (print, ("gotcha",))


@pytest.mark.parametrize("data", [pickle.dumps(Evil()), b"", pickle.dumps({"labels": [1]})])
def test_other_file_than_the_published_one_is_refused_and_not_unpickled(home, data, capsys):
    (home / "data_batch_2").write_bytes(data)
    text = refusal_of_files(home)
    stand_in = f"{home}/data_batch_2 is " + ("not CIFAR-10's original file" if data else "empty")
    assert text.startswith(stand_in) and "download" in text
    assert "gotcha" not in capsys.readouterr().out


def test_missing_cifar_batches_are_named(home, tmp_path):
    (home / "data_batch_3").unlink()
    assert "has no data_batch_3; " in refusal_of_files(home)
    assert all(name in refusal_of_files(tmp_path.parent) for name in CIFAR_BATCHES)
