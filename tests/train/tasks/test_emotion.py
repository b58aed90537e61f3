"""Emotion is read from `text;label` files or the Hub, and scored on two named sets."""

import json

import pytest

from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.text.made import DISTILBERT
from train.tasks import emotion
from train.tasks.text import tsv

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] i feel happy ; sad and so".split()
ROWS = "i feel so happy;joy\ni feel sad; and so sad;sadness\n"


@pytest.fixture
def made(tmp_path):
    """Three files in the set's own form, a vocabulary and a model's configuration."""
    for name, count in (("train", 20), ("val", 3), ("test", 5)):
        (tmp_path / f"{name}.txt").write_text("text;label_name\n" + ROWS * count)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "config.json").write_text(json.dumps(DISTILBERT))
    return tmp_path


def config_of(made, **more):
    base = {"task": "emotion", "batch_size": 8, "epochs": 20, "max_seq_length": 16}
    return alone.settings(made, **{**base, **more})


def test_distilbert_learns_it_and_both_sets_are_scored(made):
    history, _ = alone.train(config_of(made, dropout=0.0, lr=3e-2), made)
    (scores,) = history.evaluations
    assert scores.samples == 16
    assert scores.metrics["accuracy_val"] == scores.metrics["accuracy_test"] == 1.0
    assert scores.metrics["eval_loss_val"] < 0.5


def test_batches_are_filled_up_to_a_multiple_of_eight(made):
    task = emotion.build(config_of(made))
    task.prepare()
    train = task.build_datasets().train
    batch = task.collate([train[0], train[1]])
    assert batch["input_ids"].shape == (2, 16)  # from 9 tokens
    assert batch["attention_mask"].sum(1).tolist() == [6, 9]


def test_the_text_ends_at_the_last_semicolon(made):
    found = tsv.read(emotion.SPEC, made / "train.txt")
    assert found.texts[0][:2] == ["i feel so happy", "i feel sad; and so sad"]
    assert found.labels[:2] == [1, 0]


@pytest.mark.parametrize("header", ["", "text;label_name\n", "\ufefftext;label_name\r\n"])
def test_a_header_may_be_there(made, header):
    path = made / "some.txt"
    path.write_bytes((header + "i feel so happy;joy\r\n\r\n").encode())
    assert tsv.read(emotion.SPEC, path) == ((["i feel so happy"],), [1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fine;joy\ni feel\n", "2: expected 2 fields between ';' (text, label_name), got 1"),
        ("a;joy\nb;glee\n", "2: unknown label 'glee'; known: sadness, joy, love, anger, fear,"),
        ("a;joy\ntext;label_name\n", "2: unknown label 'label_name'"),
        ("text;label_name\n", " no examples in it"),
    ],
)
def test_wrong_rows_are_named_by_file_and_line(made, text, message):
    path = made / "val.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        emotion.build(config_of(made)).prepare()
    assert f"{path}:{message}" in str(error.value)


def test_a_folder_without_the_files_is_refused(made):
    (made / "test.txt").unlink()
    with pytest.raises(UsageError, match=r"has no test\.txt; emotion is read from train\.txt, val"):
        emotion.build(config_of(made)).prepare()


def test_the_hubs_set_is_read_by_its_own_names(made, monkeypatch):
    import datasets

    asked = []

    def load_dataset(*name, split):
        asked.append((*name, split))
        return datasets.Dataset.from_dict({"text": ["i feel sad", "i feel so"], "label": [0, 4]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = emotion.build(config_of(made, data_dir=None))
    task.prepare()
    assert [sample["label"] for sample in task.build_datasets().train] == [0, 4]
    assert asked == [("dair-ai/emotion", split) for split in ("train", "validation", "test")]
