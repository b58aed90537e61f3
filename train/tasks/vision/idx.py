"""Read MNIST's own files as images; the message about a wrong header names its file."""

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

SUBFOLDER = Path("MNIST", "raw")  # torchvision's folder
# The images and labels of each part; a dot may replace the second hyphen.
PARTS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
UNSIGNED_BYTE = 0x08
SIDE = 28
CLASSES = 10


def read(folder: Path) -> dict[str, Images]:
    """The images of each part, uint8 (n, 1, 28, 28).

    The files may be packed, in `folder` itself or in MNIST/raw below it.

    Raises:
        UsageError: a file is missing, damaged, or not what its name says.
    """
    require_folder(folder)
    home = folder / SUBFOLDER if (folder / SUBFOLDER).is_dir() else folder
    found = {name: _existing(home, name) for names in PARTS.values() for name in names}
    if missing := [name for name, paths in found.items() if not paths]:
        raise UsageError(f"--data-dir {home} has no {', '.join(missing)}, with or without .gz")
    return {part: _part(*(found[name][0] for name in names)) for part, names in PARTS.items()}


def _part(images_path: Path, labels_path: Path) -> Images:
    images, labels = _array(images_path, 3), _array(labels_path, 1)
    if images.shape[1:] != (SIDE, SIDE):
        raise UsageError(f"{images_path}: expected images of {SIDE} x {SIDE}, got {images.shape}")
    if len(images) != len(labels) or not len(labels):
        raise UsageError(
            f"{labels_path}: {len(labels)} labels for {len(images)} images in {images_path.name}"
        )
    if labels.max() >= CLASSES:
        raise UsageError(f"{labels_path}: labels must be from 0 to {CLASSES - 1}")
    return Images(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels).long())


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
        raise UsageError(f"{path}: damaged: {error}") from None
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise UsageError(f"{path}: not an idx file of bytes in {dimensions} dimensions")
    shape = numpy.frombuffer(data, dtype=">u4", count=dimensions, offset=4).tolist()
    if len(data) - start != math.prod(shape):
        raise UsageError(
            f"{path}: its header says {' x '.join(map(str, shape))} bytes, "
            f"but {len(data) - start} follow"
        )
    return numpy.frombuffer(bytearray(data[start:]), dtype=numpy.uint8).reshape(shape)


def _existing(home: Path, name: str) -> list[Path]:
    """The files of that name, in either spelling, packed or not."""
    names = (name, name.replace("-idx", ".idx"))
    paths = [home / f"{one}{packed}" for one in names for packed in ("", ".gz")]
    return [path for path in paths if path.is_file()]
