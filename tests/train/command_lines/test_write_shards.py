"""Shards written from text contain exactly the samples that a run on the text would draw."""

import pytest

from muster.errors import UsageError
from tests.train.tasks.pretraining.made import VOCABULARY, text
from tests.train.tasks.text.made import prepared, small
from train.command_lines import write_shards

EPOCHS, WIDTH = 2, 24


@pytest.fixture
def folder(tmp_path):
    """Make a folder with text, a vocabulary and a model's configuration."""
    (tmp_path / "text").mkdir()
    for name, documents in {"train": 60, "valid": 8, "wiki.test": 5}.items():
        (tmp_path / "text" / f"{name}.txt").write_text(text(documents))
    return small(tmp_path, VOCABULARY)


def write(folder, source="text", to="shards"):
    flags = f"--tokenizer={folder}/vocab.txt --model={folder}/config.json"
    flags += f" --data-dir={folder}/{source} --cache-dir={folder}/cache"
    flags += f" --max-seq-length={WIDTH} --epochs={EPOCHS}"
    return write_shards.main([str(folder / to), *flags.split()])


def built(folder, source):
    task = prepared(folder, "bert", data_dir=folder / source, max_seq_length=WIDTH)
    return task, task.build_datasets()


def test_shards_hold_the_samples_of_each_epoch_and_set(folder, capsys):
    assert write(folder) == 0
    written = sorted(path.name for path in (folder / "shards").iterdir())
    assert written == ["test_0.hdf5", "train_0.hdf5", "train_1.hdf5", "valid_0.hdf5"]
    task, own = built(folder, "text")
    _, found = built(folder, "shards")
    expected = []
    for epoch in range(EPOCHS):
        task.start_epoch(epoch)
        expected += list(own.train)
    assert list(found.train) == expected
    assert expected[: len(own.train)] != expected[len(own.train) :]  # new masks in each epoch
    assert found.evaluation.keys() == own.evaluation.keys() == {"", "test"}
    for name, samples in own.evaluation.items():
        assert list(found.evaluation[name]) == list(samples)
    printed = capsys.readouterr().out
    assert f"train_1.hdf5: {len(own.train)} samples" in printed


def test_existing_shards_are_not_overwritten_or_read_as_text(folder):
    write(folder)
    with pytest.raises(UsageError, match=r"train_0\.hdf5.*exists"):
        write(folder)
    with pytest.raises(UsageError, match="has HDF5 shards"):
        write(folder, "shards", "more")
    assert not (folder / "more").exists()
