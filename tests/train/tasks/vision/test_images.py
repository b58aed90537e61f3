"""Crops and flips depend on seed, epoch and sample alone, and are the course's."""

from collections import Counter

import pytest
import torch
from torch.nn.functional import pad

from train.tasks.vision.images import Augmented, Image, Images, Scale
from train.tasks.vision.vgg import LAYERS, Vgg


def some(count=400):
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(1, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Images(pixels, torch.arange(count) % 10)


def where(image, crop):
    """(top, left, mirrored) of `crop` in `image` with its border."""
    bordered = pad(image, (4, 4, 4, 4))
    for mirrored in (False, True):
        straight = crop.flip(-1) if mirrored else crop
        for top in range(9):
            for left in range(9):
                if torch.equal(bordered[:, top : top + 32, left : left + 32], straight):
                    return top, left, mirrored
    raise AssertionError("no crop of this image")


def test_every_crop_and_flip_comes_up_as_often_as_the_others():
    images = some()
    augmented = Augmented(images, seed=1)
    drawn = [where(images.pixels[at], augmented[at].pixels) for at in range(len(images))]
    for axis in (0, 1):
        counts = Counter(one[axis] for one in drawn)
        assert set(counts) == set(range(9))
        assert all(20 < count < 75 for count in counts.values())  # 44 expected
    assert 160 < sum(mirrored for *_, mirrored in drawn) < 240
    assert len(set(drawn)) > 140  # of 162 ways: they are drawn apart


def test_samples_are_drawn_by_seed_epoch_and_index_alone():
    images = some(40)
    one, other = Augmented(images, seed=1), Augmented(images, seed=1)

    def same(a, b):
        return sum(torch.equal(a[at].pixels, b[at].pixels) for at in range(40))

    order = torch.randperm(40).tolist()
    seen = {at: one[at].pixels for at in order}
    assert all(torch.equal(seen[at], other[at].pixels) for at in range(40))
    assert all(one[at].label == images[at].label for at in range(40))
    other.epoch = 1
    assert same(one, other) < 5
    one.epoch = 1
    assert same(one, other) == 40
    assert same(one, Augmented(images, seed=2)) < 5


def test_a_batch_is_scaled_by_channel():
    pixels = torch.tensor([0, 100, 255], dtype=torch.uint8).view(3, 1, 1).expand(3, 2, 2)
    scale = Scale(mean=(10.0, 20.0, 30.0), std=(2.0, 4.0, 5.0))
    batch = scale.collate([Image(pixels, 3), Image(pixels, 7)])
    assert batch["images"].shape == (2, 3, 2, 2) and batch["images"].dtype == torch.float32
    assert batch["images"][1, :, 0, 1].tolist() == [-5.0, 20.0, 45.0]
    assert batch["labels"].tolist() == [3, 7]


@pytest.mark.parametrize("name", LAYERS)
def test_vgg_has_as_many_convolutions_as_its_name_says(name):
    model = Vgg(name, 10)
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    assert len(weights) + 2 == int(name.removeprefix("vgg"))  # its own has three linear layers
