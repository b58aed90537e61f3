"""Shards written from text hold the very samples that a run on the text would draw."""

import json
import random

import pytest

from muster.errors import UsageError
from tests.train import alone
from train.command_lines import write_shards
from train.tasks import bert

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

WORDS = "the a cat dog sat ran on under mat tree saw big old red house it he . , ##s".split()
MODEL = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
}
EPOCHS, WIDTH = 2, 24


def text(seed, documents):
    """Documents of a few sentences each, with blank lines between them."""
    rng = random.Random(seed)
    line = " ".join
    made = [
        "\n".join(line(rng.choices(WORDS[:17], k=rng.randint(3, 9))) + " ." for _ in range(6))
        for _ in range(documents)
    ]
    return "\n\n".join(made) + "\n"


@pytest.fixture
def folder(tmp_path):
    """Text, a vocabulary and a model's configuration."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text(text(1, 30))
    (tmp_path / "text" / "valid.txt").write_text(text(2, 8))
    (tmp_path / "text" / "wiki.test.txt").write_text(text(3, 5))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


def flags(folder, **more):
    settings = {
        "data_dir": folder / "text",
        "tokenizer": folder / "vocab.txt",
        "model": folder / "config.json",
        "cache_dir": folder / "cache",
        "max_seq_length": WIDTH,
        "epochs": EPOCHS,
        **more,
    }
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def built(folder, data_dir):
    config = alone.settings(folder, task="bert", data_dir=data_dir, max_seq_length=WIDTH)
    task = bert.build(config)
    task.prepare()
    return task, task.build_datasets()


def listed(samples):
    return [samples[at] for at in range(len(samples))]


def test_they_are_the_samples_of_each_epoch_and_set(folder, capsys):
    assert write_shards.main([str(folder / "shards"), *flags(folder)]) == 0
    written = sorted(path.name for path in (folder / "shards").iterdir())
    assert written == ["test_0.hdf5", "train_0.hdf5", "train_1.hdf5", "valid_0.hdf5"]
    task, own = built(folder, folder / "text")
    _, found = built(folder, folder / "shards")
    expected = []
    for epoch in range(EPOCHS):
        task.start_epoch(epoch)
        expected += listed(own.train)
    assert listed(found.train) == expected
    assert expected[: len(own.train)] != expected[len(own.train) :]  # new masks in each epoch
    assert found.evaluation.keys() == own.evaluation.keys() == {"", "test"}
    for name, samples in own.evaluation.items():
        assert listed(found.evaluation[name]) == listed(samples)
    printed = capsys.readouterr().out
    assert f"train_1.hdf5: {len(own.train)} samples" in printed


def test_a_run_reads_them_without_a_tokenizer(folder):
    write_shards.main([str(folder / "shards"), *flags(folder)])
    config = alone.settings(
        folder,
        task="bert",
        data_dir=folder / "shards",
        tokenizer=None,
        max_seq_length=WIDTH,
        epochs=1,
    )
    history, trainer = alone.train(config, folder)
    assert sum(step.samples for step in history.steps) == len(trainer.datasets.train) > 100
    assert {"mlm_accuracy", "mlm_accuracy_test"} <= history.evaluations[-1].metrics.keys()


def test_nothing_is_written_over_or_made_of_shards(folder):
    write_shards.main([str(folder / "shards"), *flags(folder)])
    with pytest.raises(UsageError, match=r"train_0\.hdf5.*already there; give another folder"):
        write_shards.main([str(folder / "shards"), *flags(folder)])
    with pytest.raises(UsageError, match="has HDF5 shards already"):
        write_shards.main([str(folder / "more"), *flags(folder, data_dir=folder / "shards")])
    assert not (folder / "more").exists()
