"""Emotion is read from `text;label` files or the Hub, and scored on two named sets."""

import pytest

from muster.errors import UsageError
from tests.train.tasks.text.made import DISTILBERT, prepared, small, trained
from train.tasks import emotion
from train.tasks.text import classification

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] i feel happy ; sad and so".split()
ROWS = "i feel so happy;joy\ni feel sad; and so sad;sadness\n"


@pytest.fixture
def made(tmp_path):
    """Three files in the set's own form, a vocabulary and a model's configuration."""
    (tmp_path / "emotion").mkdir()
    for name, count in (("train", 20), ("val", 3), ("test", 5)):
        (tmp_path / "emotion" / f"{name}.txt").write_text("text;label_name\n" + ROWS * count)
    return small(tmp_path, WORDS, DISTILBERT)


def test_distilbert_learns_it_and_both_sets_are_scored(made):
    recipe = {"batch_size": 8, "epochs": 20, "dropout": 0.0, "lr": 3e-2}
    history, _ = trained(made, "emotion", **recipe)
    (scores,) = history.evaluations
    assert scores.samples == 16
    assert scores.metrics["accuracy_val"] == scores.metrics["accuracy_test"] == 1.0
    assert scores.metrics["eval_loss_val"] < 0.5


def test_batches_are_filled_up_to_a_multiple_of_eight(made):
    task = prepared(made, "emotion")
    train = task.build_datasets().train
    batch = task.collate([train[0], train[1]])
    assert batch["input_ids"].shape == (2, 16)  # from 9 tokens
    assert batch["attention_mask"].sum(1).tolist() == [6, 9]


@pytest.mark.parametrize("header", ["", "text;label_name\n", "\ufefftext;label_name\r\n"])
def test_a_header_may_be_there_and_the_text_ends_at_the_last_semicolon(made, header):
    path = made / "some.txt"
    path.write_bytes((header + "i feel sad; and so;joy\r\n\r\n").encode())
    assert classification.read(emotion.SPEC, path) == ((["i feel sad; and so"],), [1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fine;joy\ni feel\n", "2: expected 2 fields between ';' (text, label_name), got 1"),
        ("a;joy\ntext;label_name\n", "2: unknown label 'label_name'; known: sadness, joy, love,"),
    ],
)
def test_wrong_rows_are_named_by_file_and_line(made, text, message):
    path = made / "emotion" / "val.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        classification.read(emotion.SPEC, path)
    assert str(error.value).startswith(f"{path}:{message}")


def test_the_hubs_set_is_read_by_its_own_names(made, monkeypatch):
    import datasets

    asked = []

    def load_dataset(*name, split):
        asked.append((*name, split))
        return datasets.Dataset.from_dict({"text": ["i feel sad", "i feel so"], "label": [0, 4]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    train = prepared(made, "emotion", data_dir=None).build_datasets().train
    assert [sample["label"] for sample in train] == [0, 4]
    assert asked == [("dair-ai/emotion", split) for split in ("train", "validation", "test")]
