"""Small data sets in the format of the published files, and settings of tasks that read them."""

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy

from configs import cli
from configs.settings.train import TrainConfig

CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def recipe(task: str, *flags: str) -> TrainConfig:
    """Return the settings of a single process with these flags and the task's own defaults."""
    argv = [f"--task={task}", "--sync=single", *flags]
    (config,) = cli.parse([TrainConfig], argv, prog="", description="")
    return config


class Python2Pickler(pickle._Pickler):
    """Writes text and bytes as Python 2 did, with which the official files were made."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        data = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def cifar_batch(size: int, seed: int) -> dict[str, Any]:
    """Return `size` images that are darker or brighter depending on their label."""
    rng = numpy.random.default_rng(seed)
    labels = rng.integers(10, size=size)
    noise = rng.integers(30, size=(size, 3072))
    return {
        "batch_label": f"batch {seed}",
        "labels": labels.tolist(),
        "data": (noise + 20 * labels[:, None]).astype(numpy.uint8),
        "filenames": [f"{index}.png" for index in range(size)],
    }


def write_cifar(folder: Path, size: int = 8) -> Path:
    """Write the official folder, with `size` images in each batch."""
    home = folder / "cifar-10-batches-py"
    home.mkdir(parents=True)
    for seed, name in enumerate(CIFAR_BATCHES):
        (home / name).write_bytes(python2_pickle(cifar_batch(size, seed)))
    return folder


def idx_file(array: numpy.ndarray[Any, Any]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(numpy.uint8).tobytes()


def write_mnist(folder: Path, size: int = 32, packed: bool = True) -> Path:
    """Write the four files, with `size` training images whose label is a bright row."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", size), ("t10k", size // 2)):
        rng = numpy.random.default_rng(count)
        labels = rng.integers(10, size=count)
        images = rng.integers(60, size=(count, 28, 28))
        images[numpy.arange(count), 4 + 2 * labels] = 255
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            data = idx_file(array)
            path = folder / f"{part}-{kind}-ubyte{'.gz' * packed}"
            path.write_bytes(gzip.compress(data) if packed else data)
    return folder
