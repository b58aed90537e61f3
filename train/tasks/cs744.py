"""CS744: VGG with BatchNorm on augmented CIFAR-10, as in the course.

CIFAR-10's own files are read as images; nothing in them is executed.
"""

import math
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from muster.errors import UsageError
from train.tasks.sources import files
from train.tasks.vision.image_classification import ImageTask, Spec

# How many 3x3 convolutions there are before each of five times that the image is halved.
LAYERS = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
WIDTHS = (64, 128, 256, 512, 512)  # their output channels
FOLDER = "cifar-10-batches-py"  # the folder in the official archive
PARTS = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
SHAPE = (3, 32, 32)
CLASSES = 10
GENERATED = "generated"  # as --data-dir
SIZES = {"train": 50_000, "test": 10_000}
# What an array and its type are pickled by; since numpy 2 with an underscore.
OF_ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}


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
    """The images of each part and their labels, in `folder` or the official folder below it.

    `generated`, where there is no such folder: as many images, made here.

    Raises:
        UsageError: a file is missing or is not a batch of CIFAR-10.
    """
    if folder.name == GENERATED and not folder.exists():
        return {part: _generated(size, seed) for seed, (part, size) in enumerate(SIZES.items())}
    what = (
        f"CIFAR-10 is read from the python version's folder, {FOLDER}, with data_batch_1 to "
        "data_batch_5 and test_batch"
    )
    names = {name: (name,) for every in PARTS.values() for name in every}
    paths = files.find(folder, names, what, below=FOLDER)
    batches = {part: [_batch(paths[name]) for name in every] for part, every in PARTS.items()}
    return {
        part: TensorDataset(*map(torch.cat, zip(*own, strict=True)))
        for part, own in batches.items()
    }


def _generated(size: int, seed: int) -> TensorDataset:
    """Noise, brighter in one band of rows that depends on the label: the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    pixels = torch.randint(160, (size, *SHAPE), generator=generator, dtype=torch.uint8)
    bands = torch.arange(SHAPE[1]) // 3 == labels[:, None]
    return TensorDataset(pixels + 90 * bands[:, None, :, None].to(torch.uint8), labels)


def _batch(path: Path) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, 32, 32) and labels (n,) of one file."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
        _, shape, _, by_columns, data = content["data"].state
        data = data.encode("latin1") if isinstance(data, str) else data
        flat = numpy.frombuffer(bytearray(data), dtype=numpy.uint8)
        pixels = flat.reshape(shape, order="F" if by_columns else "C")
        labels = numpy.asarray(content["labels"], dtype=numpy.int64)
        row_bytes = math.prod(SHAPE)
        if labels.ndim != 1 or not len(labels) or pixels.shape != (len(labels), row_bytes):
            raise pickle.UnpicklingError(
                f"expected rows of {row_bytes} bytes and as many labels, got {pixels.shape} "
                f"and {labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= CLASSES:
            raise pickle.UnpicklingError(f"labels must be from 0 to {CLASSES - 1}")
    except Exception as error:  # noqa: BLE001 (a damaged pickle raises any)
        kind = f" ({type(error).__name__})" if not isinstance(error, pickle.PickleError) else ""
        raise UsageError(f"{path}: not a batch of CIFAR-10{kind}: {error}") from None
    return torch.from_numpy(pixels.reshape(-1, *SHAPE)), torch.from_numpy(labels)


class _Unpickler(pickle.Unpickler):
    """Builds plain containers, and records the parts of a numpy array; refuses everything else.

    The files name four functions. Each is replaced by one of ours, so that a file never calls
    numpy's or Python's own.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in OF_ARRAYS:
            return _State
        if (module, name) == ("_codecs", "encode"):
            # bytes, as Python 3 pickles them for Python 2: latin1 text, as for all others here
            return lambda text, encoding: text
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which such a file does not")


class _State:
    """A pickled numpy array, or its type."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


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
