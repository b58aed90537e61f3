"""HetSeq's example of a custom task: a small convolutional network on MNIST.

MNIST's original files are read as images; the error about a wrong header names the file.
"""

import gzip
import math
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset

from muster.errors import UsageError
from train.tasks.sources import files
from train.tasks.vision.image_classification import ImageTask, Spec

SUBFOLDER = "MNIST/raw"  # torchvision's folder
# The images and labels of each part; a dot may replace the second hyphen.
PARTS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 0x08
SIDE = 28
CLASSES = 10


def network() -> nn.Module:
    """The network of HetSeq and of torch's own example."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, CLASSES),
    )  # fmt: skip


def read(folder: Path) -> dict[str, TensorDataset]:
    """Read the images of each part, uint8 (n, 1, 28, 28), and their labels.

    The files may be compressed, and are in `folder` itself or in MNIST/raw below it.

    Raises:
        UsageError: a file is missing, damaged, or not what its name says.
    """
    names = {
        name: [
            f"{stem}{end}" for stem in (name, name.replace("-idx", ".idx")) for end in ("", ".gz")
        ]
        for every in PARTS.values()
        for name in every
    }
    paths = files.find(folder, names, "mnist needs the four published files", SUBFOLDER)
    return {part: _part(*(paths[name] for name in every)) for part, every in PARTS.items()}


def _part(images_path: Path, labels_path: Path) -> TensorDataset:
    images, labels = _array(images_path, 3), _array(labels_path, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise UsageError(f"{images_path}: expected images of {SIDE} x {SIDE}, got {images.shape}")
    if len(images) != len(labels) or not len(labels) or labels.max() >= CLASSES:
        raise UsageError(
            f"{labels_path}: expected a label from 0 to {CLASSES - 1} for each of the "
            f"{len(images)} images in {images_path.name}, got {len(labels)} labels, the largest "
            f"{labels.max(initial=0)}"
        )
    return TensorDataset(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())


def _array(path: Path, dimensions: int) -> numpy.ndarray[Any, Any]:
    """The bytes of one idx file, uint8, in the shape of its header.

    Raises:
        UsageError: the header is not that of unsigned bytes in `dimensions`, or does not fit the
            data after it.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise UsageError(f"{path}: not an idx file of bytes in {dimensions} dimensions")
    shape = numpy.frombuffer(data, dtype=">u4", count=dimensions, offset=4).tolist()
    if len(data) - start != math.prod(shape):
        raise UsageError(
            f"{path}: its header promises {' x '.join(map(str, shape))} bytes, but "
            f"{len(data) - start} follow"
        )
    return numpy.frombuffer(bytearray(data[start:]), dtype=numpy.uint8).reshape(shape)


SPEC = Spec(
    models={"cnn": network},
    read=read,
    hub="ylecun/mnist",
    column="image",
    mean=(33.3285,),  # 0.1307 and 0.3081 of 255
    std=(78.5655,),
    classes=CLASSES,
)

build = partial(ImageTask, SPEC)
