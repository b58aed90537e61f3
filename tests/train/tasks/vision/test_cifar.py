"""The official files are read as they are; whatever else they hold is refused by name."""

import pickle
import random

import numpy
import pytest
import torch

from muster.errors import UsageError
from tests.train.tasks.vision.files import CIFAR_BATCHES, cifar_batch, python2_pickle, write_cifar
from train.tasks.vision import cifar


@pytest.fixture
def home(tmp_path):
    return write_cifar(tmp_path) / "cifar-10-batches-py"


def refusal(folder):
    with pytest.raises(UsageError) as error:
        cifar.read(folder)
    return str(error.value)


@pytest.mark.parametrize("below", [True, False])
def test_the_official_folder_and_the_one_above_it_are_read(home, below):
    sets = cifar.read(home.parent if below else home)
    made = [cifar_batch(8, seed) for seed in range(6)]
    wanted = numpy.concatenate([batch["data"] for batch in made[:5]])
    assert sets["train"].tensors[0].shape == (40, 3, 32, 32) and len(sets["test"]) == 8
    assert torch.equal(sets["train"].tensors[0].flatten(1), torch.from_numpy(wanted))
    labels = [label for batch in made[:5] for label in batch["labels"]]
    assert sets["train"].tensors[1].tolist() == labels
    assert sets["test"][3][1] == made[5]["labels"][3]


@pytest.mark.parametrize("protocol", [0, 1, 2])
@pytest.mark.parametrize("keys", [str, str.encode])
def test_files_made_by_python_3_are_read_too(home, keys, protocol):
    batch = {keys(key): value for key, value in cifar_batch(8, 5).items()}
    if protocol == 0 and keys is str:
        batch["data"] = numpy.asfortranarray(batch["data"])
    (home / "test_batch").write_bytes(pickle.dumps(batch, protocol=protocol))
    expected = torch.from_numpy(numpy.ascontiguousarray(cifar_batch(8, 5)["data"]))
    assert torch.equal(cifar.read(home)["test"].tensors[0].flatten(1), expected)


class Evil:
    def __reduce__(self):
        return (print, ("gotcha",))


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (Evil(), "it asks for __builtin__.print"),
        ({**cifar_batch(4, 1), "filenames": Evil()}, "it asks for __builtin__.print"),
        ({**cifar_batch(4, 1), "data": numpy.zeros((4, 3072))}, "(ValueError)"),
        ({**cifar_batch(4, 1), "data": numpy.zeros((4, 9), "u1")}, r"got (4, 9) and (4,)"),
        ({**cifar_batch(4, 1), "labels": [1, 2, 3]}, "expected rows of 3072 bytes and as many"),
        ({**cifar_batch(4, 1), "labels": [1, 2, 3, 10]}, "labels must be from 0 to 9"),
        ({**cifar_batch(4, 1), "labels": [1, 2, 3, "x"]}, "(ValueError)"),
        ({"labels": [1]}, "(KeyError)"),
        ([1, 2], "(TypeError)"),
    ],
)
def test_what_such_a_file_does_not_hold_is_refused(home, spoilt, message, capsys):
    (home / "data_batch_2").write_bytes(pickle.dumps(spoilt, protocol=2))
    text = refusal(home)
    assert text.startswith(f"{home}/data_batch_2: not a batch of CIFAR-10") and message in text
    assert "gotcha" not in capsys.readouterr().out


def test_a_damaged_file_is_never_a_traceback(home):
    whole = python2_pickle(cifar_batch(2, 5))
    heads = [*range(200), *range(len(whole) - 200, len(whole))]
    rng = random.Random(1)
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.choice(heads)] = rng.randrange(256)
        (home / "test_batch").write_bytes(damaged[: rng.choice([len(whole), rng.randrange(300)])])
        try:
            cifar.read(home)
        except UsageError as error:
            assert "test_batch: not a batch of CIFAR-10" in str(error)


def test_missing_files_are_named(home, tmp_path):
    (home / "data_batch_3").unlink()
    assert "has no data_batch_3; CIFAR-10 is read from the python version" in refusal(home)
    assert f"--data-dir {tmp_path}/gone does not exist" in refusal(tmp_path / "gone")
    assert "is not a folder" in refusal(home / "test_batch")
    assert all(name in refusal(tmp_path.parent) for name in CIFAR_BATCHES)
