"""Images of the Hub are unpacked into the cache once; a batch of any is scaled by channel."""

import numpy
import pytest
import torch
from PIL import Image

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks import cs744, mnist

KINDS = {"cs744": (cs744, (6, 4, 3)), "mnist": (mnist, (6, 4))}


def build(name, folder):
    return KINDS[name][0].build(TrainConfig(task=name, cache_dir=folder))


@pytest.fixture
def loaded(monkeypatch):
    """Stands in for the download: five images a split, as `datasets` keeps them."""
    import datasets

    calls = []

    def load_dataset(name, *, split):
        calls.append((name, split))
        is_grey = name == mnist.SPEC.hub
        shape, column = KINDS["mnist" if is_grey else "cs744"][1], "image" if is_grey else "img"
        rng = numpy.random.default_rng(len(split))
        arrays = rng.integers(256, size=(5, *shape)).astype(numpy.uint8)
        columns = {
            column: [Image.fromarray(array) for array in arrays],
            "label": [4, 3, 2, 1, 0],
        }
        kinds = {column: datasets.Image(), "label": datasets.ClassLabel(num_classes=5)}
        return datasets.Dataset.from_dict(columns, datasets.Features(kinds))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


@pytest.mark.parametrize("name", KINDS)
def test_a_set_is_unpacked_once(tmp_path, loaded, name):
    task = build(name, tmp_path)
    assert not task.is_prepared()
    task.prepare()
    assert task.is_prepared()
    build(name, tmp_path).prepare()
    assert loaded == [(task.spec.hub, "train"), (task.spec.hub, "test")]
    train, evaluation = task.build_datasets()
    made = numpy.random.default_rng(len("train")).integers(256, size=(5, *KINDS[name][1]))
    wanted = torch.from_numpy(made).to(torch.uint8).view(5, 6, 4, -1).movedim(-1, 1)
    assert torch.equal(train.tensors[0], wanted)
    assert evaluation[""].tensors[1].tolist() == [4, 3, 2, 1, 0]


def test_without_the_hub_the_message_asks_for_files(tmp_path, monkeypatch):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'ylecun/mnist' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UsageError, match=r"ylecun/mnist: .*give its files with --data-dir"):
        build("mnist", tmp_path).prepare()


def test_a_batch_is_scaled_by_channel(tmp_path):
    pixels = torch.tensor([0, 100, 255], dtype=torch.uint8).view(3, 1, 1).expand(3, 2, 2)
    batch = build("cs744", tmp_path).collate([(pixels, 3), (pixels, 7)])
    assert batch["images"].shape == (2, 3, 2, 2) and batch["images"].dtype == torch.float32
    scaled = [-125.3 / 63.0, (100 - 123.0) / 62.1, (255 - 113.9) / 66.7]
    assert batch["images"][1, :, 0, 1].tolist() == pytest.approx(scaled)
    assert batch["labels"].tolist() == [3, 7]
