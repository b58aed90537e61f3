"""MNIST's own files become images; a wrong header is refused by its file's name."""

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy
import torch

from muster.errors import UsageError
from train.tasks.sources.files import require_folder
from train.tasks.vision.images import Images

SUBFOLDER = Path("MNIST", "raw")  # where torchvision keeps them
# The images and labels of each part; a dot instead of the second hyphen is as good.
PARTS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 0x08
SIDE = 28
CLASSES = 10


def find(folder: Path) -> dict[str, tuple[Path, Path]]:
    """The two files of each part, packed or not, in `folder` itself or in MNIST/raw below it.

    Raises:
        UsageError: the folder or a file is missing.
    """
    require_folder(folder)
    home = folder / SUBFOLDER if (folder / SUBFOLDER).is_dir() else folder
    found = {name: _existing(home, name) for names in PARTS.values() for name in names}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise UsageError(f"--data-dir {home} has no {', '.join(missing)}, with or without .gz")
    files = {name: path for name, path in found.items() if path is not None}
    return {part: (files[images], files[labels]) for part, (images, labels) in PARTS.items()}


def read(folder: Path) -> dict[str, Images]:
    """The images of each part, uint8 (n, 1, 28, 28).

    Raises:
        UsageError: a file is missing, damaged, or not what its name says.
    """
    return {part: _part(*paths) for part, paths in find(folder).items()}


def read_array(path: Path, dimensions: int) -> numpy.ndarray[Any, Any]:
    """The bytes of one idx file, uint8, in the shape that its header gives.

    Raises:
        UsageError: the header is not that of unsigned bytes in so many `dimensions`, or does not
            fit what follows it.
    """
    data = _bytes(path)
    start = 4 + 4 * dimensions
    if len(data) < start or data[:2] != b"\0\0":
        raise UsageError(f"{path}: not an idx file: it does not begin with two zero bytes")
    if data[2] != UNSIGNED_BYTE or data[3] != dimensions:
        raise UsageError(
            f"{path}: expected unsigned bytes (0x08) in {dimensions} dimensions, "
            f"got type {data[2]:#04x} in {data[3]}"
        )
    shape = numpy.frombuffer(data, dtype=">u4", count=dimensions, offset=4).tolist()
    if len(data) - start != math.prod(shape):
        raise UsageError(
            f"{path}: its header says {' x '.join(map(str, shape))} bytes, "
            f"but {len(data) - start} follow"
        )
    return numpy.frombuffer(bytearray(data[start:]), dtype=numpy.uint8).reshape(shape)


def _part(images_path: Path, labels_path: Path) -> Images:
    images, labels = read_array(images_path, 3), read_array(labels_path, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise UsageError(f"{images_path}: expected images of {SIDE} x {SIDE}, got {images.shape}")
    if len(images) != len(labels) or not len(labels):
        raise UsageError(
            f"{labels_path}: {len(labels)} labels for {len(images)} images in {images_path.name}"
        )
    if labels.max() >= CLASSES:
        raise UsageError(f"{labels_path}: labels must be from 0 to {CLASSES - 1}")
    return Images(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())


def _existing(home: Path, name: str) -> Path | None:
    stem, _, kind = name.rpartition("-idx")
    for spelling in (name, f"{stem}.idx{kind}"):
        for path in (home / spelling, home / f"{spelling}.gz"):
            if path.is_file():
                return path
    return None


def _bytes(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: damaged: {error}") from None
