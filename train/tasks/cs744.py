"""CS744: VGG with BatchNorm on augmented CIFAR-10, as in the course.

CIFAR-10's files are pickles, so they are read only if their MD5 is that of the published files.
"""

import hashlib
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from muster.errors import UsageError
from train.tasks.sources import files
from train.tasks.vision.image_classification import ImageTask, Spec

# The number of 3x3 convolutions before each of the five times that the image is halved.
LAYERS = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
WIDTHS = (64, 128, 256, 512, 512)  # their output channels
FOLDER = "cifar-10-batches-py"  # the folder in the official archive
PARTS = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
# The MD5 of each published file; making another file with a given MD5 is beyond anyone's means.
PUBLISHED = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
SHAPE = (3, 32, 32)
CLASSES = 10
GENERATED = "generated"  # a value of --data-dir
SIZES = {"train": 50_000, "test": 10_000}


class Vgg(nn.Module):
    """BatchNorm after every convolution, one linear layer at the end.

    Images (n, 3, 32, 32) to logits (n, classes).
    """

    def __init__(self, convolutions: Sequence[int], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, width in zip(convolutions, WIDTHS, strict=True):
            for _ in range(count):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)
        self.fc1 = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc1(self.layers(images).flatten(1))
        return logits


def read(folder: Path) -> dict[str, TensorDataset]:
    """Read the images and labels of each part from `folder` or the official folder below it.

    If `folder` is `generated` and does not exist, the same number of images is generated here.

    Raises:
        UsageError: a file is missing, or is not the published one.
    """
    if folder.name == GENERATED and not folder.exists():
        return {part: _generated(size, seed) for seed, (part, size) in enumerate(SIZES.items())}
    what = (
        f"CIFAR-10 needs the folder of its Python version, {FOLDER}, with data_batch_1 to "
        "data_batch_5 and test_batch"
    )
    names = {name: (name,) for name in PUBLISHED}
    paths = files.find(folder, names, what, below=FOLDER)
    batches = {part: [_batch(paths[name]) for name in every] for part, every in PARTS.items()}
    return {
        part: TensorDataset(*map(torch.cat, zip(*own, strict=True)))
        for part, own in batches.items()
    }


def _generated(size: int, seed: int) -> TensorDataset:
    """Noise that is brighter in a band of rows, set by the label; the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    pixels = torch.randint(160, (size, *SHAPE), generator=generator, dtype=torch.uint8)
    bands = torch.arange(SHAPE[1]) // 3 == labels[:, None]
    return TensorDataset(pixels + 90 * bands[:, None, :, None].to(torch.uint8), labels)


def _batch(path: Path) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, 32, 32) and labels (n,) of one file."""
    data = path.read_bytes()
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != PUBLISHED[path.name]:
        raise UsageError(
            f"{path} is not CIFAR-10's original file: its MD5 checksum does not match. It is not "
            "read, because it is a pickle, which can run code"
            "\ntip: download it again, leave out --data-dir to get the images from the Hub, or "
            f"use --data-dir {GENERATED} for generated images"
        )
    content = pickle.loads(data, encoding="latin1")
    pixels = torch.from_numpy(content["data"]).reshape(-1, *SHAPE)
    return pixels, torch.tensor(content["labels"])


SPEC = Spec(
    models={name: partial(Vgg, counts, CLASSES) for name, counts in LAYERS.items()},
    read=read,
    hub="uoft-cs/cifar10",
    column="img",
    mean=(125.3, 123.0, 113.9),
    std=(63.0, 62.1, 66.7),
    classes=CLASSES,
    augment=True,
)

build = partial(ImageTask, SPEC)
