"""Images from the Hub are unpacked into the cache once; every batch is scaled by channel.

Crops and flips are the course's, and depend only on seed, epoch and sample.
"""

from collections import Counter

import numpy
import pytest
import torch
from PIL import Image
from torch.nn.functional import pad
from torch.utils.data import TensorDataset

from configs.settings.train import TrainConfig
from train.tasks import cs744, mnist
from train.tasks.vision.image_classification import Augmented

KINDS = {"cs744": (cs744, (6, 4, 3)), "mnist": (mnist, (6, 4))}


def build(name, folder):
    return KINDS[name][0].build(TrainConfig(task=name, cache_dir=folder))


@pytest.mark.parametrize("name", KINDS)
def test_image_set_of_the_hub_is_unpacked_once(tmp_path, name, hub):
    from datasets import ClassLabel
    from datasets import Image as ImageColumn

    task = build(name, tmp_path)
    arrays = numpy.random.default_rng(1).integers(256, size=(5, *KINDS[name][1]), dtype=numpy.uint8)
    images, column = [Image.fromarray(array) for array in arrays], task.spec.column
    rows = {column: images, "label": [4, 3, 2, 1, 0]}
    asked = hub(rows, **{column: ImageColumn(), "label": ClassLabel(num_classes=5)})
    assert not task.is_prepared()
    task.prepare()
    assert task.is_prepared()
    build(name, tmp_path).prepare()
    assert asked == [(task.spec.hub, "train"), (task.spec.hub, "test")]
    train, evaluation = task.build_datasets()
    wanted = torch.from_numpy(arrays).view(5, 6, 4, -1).movedim(-1, 1)
    assert torch.equal(train.tensors[0], wanted)
    assert evaluation[""].tensors[1].tolist() == [4, 3, 2, 1, 0]


def test_image_batch_is_scaled_by_channel(tmp_path):
    pixels = torch.tensor([0, 100, 255], dtype=torch.uint8).view(3, 1, 1).expand(3, 2, 2)
    batch = build("cs744", tmp_path).collate([(pixels, 3), (pixels, 7)])
    assert batch["images"].shape == (2, 3, 2, 2) and batch["images"].dtype == torch.float32
    scaled = [-125.3 / 63.0, (100 - 123.0) / 62.1, (255 - 113.9) / 66.7]
    assert batch["images"][1, :, 0, 1].tolist() == pytest.approx(scaled)
    assert batch["labels"].tolist() == [3, 7]


def some(count=400):
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(1, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return TensorDataset(pixels, torch.arange(count) % 10)


def where(image, crop):
    """Return (top, left, mirrored) of `crop` in `image` with its border."""
    bordered = pad(image, (4, 4, 4, 4))
    for mirrored in (False, True):
        straight = crop.flip(-1) if mirrored else crop
        for top in range(9):
            for left in range(9):
                if torch.equal(bordered[:, top : top + 32, left : left + 32], straight):
                    return top, left, mirrored
    raise AssertionError("no crop of this image")


def test_crops_and_flips_are_drawn_evenly():
    images = some()
    augmented = Augmented(images, seed=1)
    drawn = [where(images[at][0], augmented[at][0]) for at in range(len(images))]
    for axis in (0, 1):
        counts = Counter(one[axis] for one in drawn)
        assert set(counts) == set(range(9))
        assert all(20 < count < 75 for count in counts.values())  # 44 expected
    assert 160 < sum(mirrored for *_, mirrored in drawn) < 240
    assert len(set(drawn)) > 140  # of 162 combinations: each part is drawn independently


def test_augmentation_depends_on_seed_epoch_and_index_alone():
    images = some(40)

    def drawn(order, seed=1, epoch=0):
        augmented = Augmented(images, seed=seed)
        augmented.epoch = epoch
        return {at: augmented[at] for at in order}

    first, again = drawn(range(40)), drawn(torch.randperm(40).tolist())
    assert all(torch.equal(first[at][0], again[at][0]) for at in range(40))
    assert all(first[at][1] == images[at][1] for at in range(40))
    for other in (drawn(range(40), seed=2), drawn(range(40), epoch=1)):
        assert sum(torch.equal(first[at][0], other[at][0]) for at in range(40)) < 5
