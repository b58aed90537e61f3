"""Crops and flips depend on seed, epoch and sample alone, and are the course's."""

from collections import Counter

import torch
from torch.nn.functional import pad
from torch.utils.data import TensorDataset

from train.tasks.vision.image_classification import Augmented


def some(count=400):
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randint(1, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return TensorDataset(pixels, torch.arange(count) % 10)


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
    drawn = [where(images[at][0], augmented[at][0]) for at in range(len(images))]
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
        return sum(torch.equal(a[at][0], b[at][0]) for at in range(40))

    order = torch.randperm(40).tolist()
    seen = {at: one[at][0] for at in order}
    assert all(torch.equal(seen[at], other[at][0]) for at in range(40))
    assert all(one[at][1] == images[at][1] for at in range(40))
    other.epoch = 1
    assert same(one, other) < 5
    one.epoch = 1
    assert same(one, other) == 40
    assert same(one, Augmented(images, seed=2)) < 5
