"""Files that are not on disk come from the Hub; if it is unreachable, a line says what to do."""

import pytest

from tests.train.tasks.text.made import FORMS, prepared, refusal
from train.tasks.text.classification import HUB_SET


def test_missing_model_or_tokenizer_file_is_named(glue):
    assert refusal(glue, model=str(glue / "no")).endswith("no: no such file or folder")
    assert refusal(glue, tokenizer=str(glue / "no.txt")).endswith("no such file or folder")
    (glue / "broken.json").write_text("{")
    assert "broken.json" in refusal(glue, model=str(glue / "broken.json"))


def test_unreachable_hub_names_what_to_do(glue):
    for settings in ({"model": "bert-base-cased"}, {"tokenizer": "bert-base-cased"}):
        message = "bert-base-cased: not on this disk, and the Hub cannot be reached"
        assert message in refusal(glue, **settings)
    assert "give its files with --data-dir" in refusal(glue, data_dir=None)


COLUMNS = {
    "cola": ["sentence"],
    "sst2": ["sentence"],
    "qqp": ["question1", "question2"],
    "mnli": ["premise", "hypothesis"],
    "qnli": ["question", "sentence"],
    "emotion": ["text"],
}
SPLITS = {"mnli": ["validation_matched", "validation_mismatched"]}
SPLITS |= {"emotion": ["validation", "test"]}


@pytest.mark.parametrize("name", FORMS)
def test_text_set_of_the_hub_is_read_by_its_columns(glue, name, hub):
    columns = COLUMNS.get(name, ["sentence1", "sentence2"])
    texts = {column: ["the cat", "a dog ran"] for column in columns}
    asked = hub({**texts, "label": [1, 0], "idx": [0, 1]})
    train = prepared(glue, name, data_dir=None).build_datasets().train
    assert [sample["label"] for sample in train] == [1, 0]
    home = ("dair-ai/emotion",) if name == "emotion" else (HUB_SET, name)
    assert asked == [(*home, split) for split in ("train", *SPLITS.get(name, ["validation"]))]
