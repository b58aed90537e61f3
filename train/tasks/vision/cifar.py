"""CIFAR-10's own files become images; nothing in them is run."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy
import torch

from muster.errors import UsageError
from train.tasks.sources.files import require_folder
from train.tasks.vision.images import Images

FOLDER = "cifar-10-batches-py"  # what the official archive unpacks to
PARTS = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
SHAPE = (3, 32, 32)
CLASSES = 10
# What a pickle that is none, or not of this kind, may raise.
DAMAGED = (AttributeError, EOFError, LookupError, MemoryError, OverflowError, TypeError, ValueError)


def find(folder: Path) -> dict[str, list[Path]]:
    """The files of each part, in `folder` itself or in the official folder below it.

    Raises:
        UsageError: the folder or a file is missing.
    """
    require_folder(folder)
    home = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    files = {part: [home / name for name in names] for part, names in PARTS.items()}
    missing = [path.name for paths in files.values() for path in paths if not path.is_file()]
    if missing:
        raise UsageError(
            f"--data-dir {home} has no {', '.join(missing)}; CIFAR-10 is read from the python "
            f"version's folder, {FOLDER}, with data_batch_1 to data_batch_5 and test_batch"
        )
    return files


def read(folder: Path) -> dict[str, Images]:
    """The images of each part.

    Raises:
        UsageError: a file is missing or is not a batch of CIFAR-10.
    """
    return {part: _joined([_batch(path) for path in paths]) for part, paths in find(folder).items()}


def _joined(batches: list[Images]) -> Images:
    return Images(
        torch.cat([batch.pixels for batch in batches]),
        torch.cat([batch.labels for batch in batches]),
    )


def _batch(path: Path) -> Images:
    try:
        with path.open("rb") as file:
            found = _Unpickler(file, encoding="bytes").load()
        found = {_text(key): value for key, value in found.items()}
        pixels = found["data"].values
        labels = numpy.asarray(found["labels"], dtype=numpy.int64)
        row_bytes = math.prod(SHAPE)
        if labels.ndim != 1 or not len(labels) or pixels.shape != (len(labels), row_bytes):
            raise pickle.UnpicklingError(
                f"expected rows of {row_bytes} bytes and as many labels, got {pixels.shape} "
                f"and {labels.shape}"
            )
        if labels.min() < 0 or labels.max() >= CLASSES:
            raise pickle.UnpicklingError(f"labels must be from 0 to {CLASSES - 1}")
    except pickle.UnpicklingError as error:
        raise UsageError(f"{path}: not a batch of CIFAR-10: {error}") from None
    except DAMAGED as error:
        raise UsageError(f"{path}: not a batch of CIFAR-10 ({type(error).__name__})") from None
    return Images(torch.from_numpy(pixels.reshape(-1, *SHAPE)), torch.from_numpy(labels))


class _Unpickler(pickle.Unpickler):
    """Builds plain containers, and bytes in the form numpy gives them; refuses all else.

    The files name four functions; each is one of ours here, so that a file never gets to call
    numpy's or Python's own.
    """

    def find_class(self, module: str, name: str) -> Any:
        known: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # since numpy 2
            ("numpy", "ndarray"): _Bytes,
            ("numpy", "dtype"): _Dtype,
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which such a file does not")
        return known[module, name]


class _Dtype:
    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.is_bytes = _text(code) in ("u1", "|u1")

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and the like, which a byte has not


class _Bytes:
    """A numpy array of bytes, as it is pickled."""

    values: numpy.ndarray[Any, Any]

    def __setstate__(self, state: tuple[Any, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, shape, dtype, by_columns, data = state
        if not dtype.is_bytes:
            raise pickle.UnpicklingError("its numbers are not bytes")
        flat = numpy.frombuffer(bytearray(data), dtype=numpy.uint8)
        self.values = flat.reshape(shape, order="F" if by_columns else "C")


def _reconstruct(*_: Any) -> _Bytes:
    return _Bytes()


def _encode(text: str | bytes, encoding: str | bytes) -> bytes:
    """How Python 3 pickles bytes for Python 2."""
    if _text(encoding) != "latin1" or not isinstance(text, str):
        raise pickle.UnpicklingError("its bytes are not encoded as latin1")
    return text.encode("latin1")


def _text(key: str | bytes) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else key
