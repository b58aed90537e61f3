"""HetSeq's MNIST example has the same recipe and network, and it learns.

MNIST's files are read compressed or not; files with wrong headers are refused by name.
"""

import gzip

import numpy
import pytest
import torch

from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.vision.files import idx_file, recipe, write_mnist
from train.tasks import mnist


def test_mnist_recipe_and_network_are_those_of_hetseq():
    config = recipe("mnist")
    assert (config.optimizer, config.lr, config.batch_size) == ("adadelta", 1.01, 64)
    assert (config.adadelta_rho, config.adadelta_eps, config.weight_decay) == (0.9, 1e-6, 0)
    assert (config.schedule, config.schedule_steps) == ("polynomial", 50000)
    assert config.max_grad_norm == 100
    model = mnist.build(config).build_model()
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    assert shapes == [(32, 1, 3, 3), (64, 32, 3, 3), (128, 9216), (10, 128)]
    assert [m.p for m in model.modules() if type(m).__name__ == "Dropout"] == [0.25, 0.5]


def test_mnist_learns_from_gzip_files_and_evaluates_at_the_end(tmp_path):
    folder = write_mnist(tmp_path / "MNIST" / "raw", size=160).parents[1]
    config = recipe("mnist", f"--data-dir={folder}", "--batch-size=40", "--epochs=8")
    history, _ = alone.train(config, tmp_path)
    assert [one.step for one in history.evaluations] == [32]
    assert history.evaluations[0].metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("below", "packed", "mark"), [("MNIST/raw", True, "-"), ("", False, "-"), ("", False, ".")]
)
def test_mnist_files_are_read_packed_plain_and_in_torchvisions_folder(
    tmp_path, below, packed, mark
):
    for path in [*write_mnist(tmp_path / below, packed=packed).iterdir()]:
        path.rename(path.with_name(path.name.replace("-idx", f"{mark}idx")))
    sets = mnist.read(tmp_path)
    assert sets["train"].tensors[0].shape == (32, 1, 28, 28) and len(sets["test"]) == 16
    assert sets["train"].tensors[0].dtype == torch.uint8
    pixels, label = sets["train"][5]
    assert (pixels[0, 4 + 2 * label] == 255).all()


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def zeros(*shape):
    return idx_file(numpy.zeros(shape))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (IMAGES, zeros(32, 28, 28)[:9], "not an idx file"),
        (IMAGES, zeros(32, 28, 28)[:-1], "32 x 28 x 28 bytes, but 25087 follow"),
        (IMAGES, zeros(32 * 28, 28), "not an idx file of bytes in 3 dimensions"),
        (IMAGES, b"\0\0\x0d" + zeros(32, 28, 28)[3:], "not an idx file of bytes"),
        (IMAGES, zeros(32, 14, 28), "expected images of 28 x 28, got (32, 14, 28)"),
        (LABELS, zeros(31), "of the 32 images in train-images-idx3-ubyte, got 31"),
        (LABELS, idx_file(numpy.full(32, 10)), "expected a label from 0 to 9"),
        (f"{LABELS}.gz", b"not packed", " is damaged: "),
        (f"{LABELS}.gz", gzip.compress(zeros(32), mtime=0)[:-9], " is damaged: "),
    ],
)
def test_wrong_idx_file_is_refused_by_name(tmp_path, name, data, message):
    write_mnist(tmp_path, packed=False)
    (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError) as error:
        mnist.read(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / name}") and message in str(error.value)
