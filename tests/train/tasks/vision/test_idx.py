"""MNIST's files are read packed or not; wrong headers are refused by file name."""

import gzip

import numpy
import pytest
import torch

from muster.errors import UsageError
from tests.train.tasks.vision.files import idx_file, write_mnist
from train.tasks.vision import idx


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", [True, False])
def test_packed_or_not_here_or_in_torchvisions_folder(tmp_path, packed, below):
    write_mnist(tmp_path / "MNIST" / "raw" if below else tmp_path, packed=packed)
    sets = idx.read(tmp_path)
    assert sets["train"].tensors[0].shape == (32, 1, 28, 28) and len(sets["test"]) == 16
    assert sets["train"].tensors[0].dtype == torch.uint8
    pixels, label = sets["train"][5]
    assert (pixels[0, 4 + 2 * label] == 255).all()


def test_the_other_spelling_of_the_names_is_known(tmp_path):
    write_mnist(tmp_path, packed=False)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert len(idx.read(tmp_path)["train"]) == 32


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def zeros(*shape):
    return idx_file(numpy.zeros(shape))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (IMAGES, b"", "not an idx file"),
        (IMAGES, b"PK" + zeros(32, 28, 28)[2:], "not an idx file"),
        (IMAGES, zeros(32, 28, 28)[:9], "not an idx file"),
        (IMAGES, zeros(32, 28, 28)[:-1], "says 32 x 28 x 28 bytes, but 25087 follow"),
        (IMAGES, zeros(32, 28, 28) + b"x", "says 32 x 28 x 28 bytes, but 25089 follow"),
        (IMAGES, zeros(32 * 28, 28), "not an idx file of bytes in 3 dimensions"),
        (IMAGES, b"\0\0\x0d" + zeros(32, 28, 28)[3:], "not an idx file of bytes"),
        (IMAGES, zeros(32, 14, 28), "expected images of 28 x 28, got (32, 14, 28)"),
        (LABELS, zeros(31), "of the 32 images in train-images-idx3-ubyte; it has 31"),
        (LABELS, idx_file(numpy.full(32, 10)), "expected labels from 0 to 9"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path, name, data, message):
    write_mnist(tmp_path, packed=False)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError) as error:
        idx.read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name}: ") and message in str(error.value)


def test_a_packed_file_that_is_cut_or_is_none_is_refused(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / f"{LABELS}.gz"
    whole = path.read_bytes()
    for data in (whole[:-9], b"not packed", gzip.compress(b"")):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=rf"{path.name}: (damaged|not an idx file)"):
            idx.read(tmp_path)


def test_missing_files_are_named(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / f"{LABELS}.gz").unlink()
    with pytest.raises(UsageError, match=f"has no {LABELS} or {LABELS}.gz or "):
        idx.read(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        idx.read(tmp_path / "gone")
