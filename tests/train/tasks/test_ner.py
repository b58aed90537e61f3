"""NER learns a small set in CoNLL's form; pieces, words, tags and models fit each other."""

import json

import pytest
import torch

from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.text import made as small
from train.tasks import ner

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] Ann Bo ##b ##by saw in York New . the".split()
MODEL = {**small.MODEL, "vocab_size": 20, "max_position_embeddings": 24}
TRAIN = """-DOCSTART- O

Bobby B-PER
saw O
Ann B-PER
in O
New B-LOC
York I-LOC
. O

Ann B-PER
saw O
York B-LOC
. O

"""


@pytest.fixture
def made(tmp_path):
    """Files in CoNLL's form, a vocabulary and a model's configuration."""
    for name, text in (("train", TRAIN * 10), ("dev", TRAIN * 2), ("test", TRAIN)):
        (tmp_path / f"{name}.txt").write_text(text)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


def config_of(made, **more):
    base = {"task": "ner", "batch_size": 4, "epochs": 8, "max_seq_length": 16}
    return alone.settings(made, **{**base, **more})


def prepared(made, **settings):
    task = ner.build(config_of(made, **settings))
    task.prepare()
    assert task.is_prepared()
    return task


def refusal(made, **settings):
    with pytest.raises(UsageError) as error:
        ner.build(config_of(made, **settings)).prepare()
    return str(error.value)


def test_it_learns_and_entities_are_scored_on_both_sets(made):
    history, _ = alone.train(config_of(made), made)
    (scores,) = history.evaluations
    assert scores.samples == 4 + 2
    for name in ("precision", "recall", "f1", "f1_LOC", "f1_PER", "f1_test", "f1_PER_test"):
        assert scores.metrics[name] == 1.0
    assert scores.metrics["eval_loss"] < 0.3


def test_the_first_piece_of_a_word_carries_its_tag(made):
    task = prepared(made)
    batch = task.collate(list(task.build_datasets().evaluation["test"]))
    # [CLS] Bo ##b ##by saw Ann in New York . [SEP]; [CLS] Ann saw York . [SEP]
    assert batch["labels"].tolist() == [
        [-100, 3, -100, -100, 0, 3, 0, 1, 2, 0, -100],
        [-100, 3, 0, 1, 0, -100, *[-100] * 5],
    ]
    assert batch["attention_mask"].sum(1).tolist() == [11, 6]
    assert task.units(batch).tolist() == [11]


def test_the_loss_is_the_models_own_mean_over_words(made):
    task = prepared(made)
    model = task.build_model().eval()
    batch = task.collate(list(task.build_datasets().train)[:3])
    output = task.forward(model, batch)
    assert output.loss.shape == (1,) and output.logits.shape == (3, 11, 4)
    assert output.loss.item() == pytest.approx(model(**batch).loss.item(), abs=1e-6)


def test_words_that_are_cut_off_are_counted_aloud(made, caplog):
    task = prepared(made, max_seq_length=8)
    assert "test set: 3 words are beyond --max-seq-length 8, or nothing but" in caplog.text
    batch = task.collate(list(task.build_datasets().train)[:1])
    assert batch["labels"].tolist() == [[-100, 3, -100, -100, 0, 3, 0, -100]]


def test_a_fine_tuned_taggers_own_order_of_tags_is_followed(made):
    from transformers import AutoModelForTokenClassification, BertConfig

    tags = ["I-LOC", "B-LOC", "B-PER", "O"]
    config = BertConfig(**MODEL, id2label=dict(enumerate(tags)))
    config.label2id = {tag: at for at, tag in enumerate(tags)}
    AutoModelForTokenClassification.from_config(config).save_pretrained(made / "tuned")
    task = prepared(made, model=str(made / "tuned"))
    model = task.build_model().eval()
    batch = task.collate(list(task.build_datasets().train)[:2])
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    expected = model(**inputs).logits[..., [3, 1, 0, 2]]  # O, B-LOC, I-LOC, B-PER
    assert torch.equal(task.forward(model, batch).logits, expected)


def test_a_tagger_for_other_tags_is_refused(made):
    from transformers import AutoModelForTokenClassification, BertConfig

    config = BertConfig(**MODEL, id2label={0: "O", 1: "B-ORG"})
    AutoModelForTokenClassification.from_config(config).save_pretrained(made / "tuned")
    message = refusal(made, model=str(made / "tuned"))
    assert "has 2 labels (O, B-ORG), but the training set has 4 (O, B-LOC, I-LOC, B-PER)" in message


def test_an_evaluation_tag_that_training_lacks_is_refused(made):
    (made / "dev.txt").write_text("Ann B-PER\nsaw I-PER\n")
    assert f"{made / 'dev.txt'}:2: the training file has no tag 'I-PER'" in refusal(made)


def test_a_change_of_the_files_makes_another_cache(made):
    prepared(made)
    (made / "dev.txt").write_text("Ann B-PER\n")
    assert not ner.build(config_of(made)).is_prepared()


def test_the_hubs_set_is_read_by_its_own_columns(made, monkeypatch):
    import datasets

    names = ["O", "B-PER", "B-LOC", "I-LOC"]
    asked = []

    def load_dataset(name, revision, split):
        asked.append((name, revision, split))
        rows = {
            "tokens": [["Ann", "saw", "New", "York"], [], ["Ann"]],
            "ner_tags": [[1, 0, 2, 3], [], [1]],
        }
        tags = datasets.List(datasets.ClassLabel(names=names))
        features = datasets.Features(
            {"tokens": datasets.List(datasets.Value("string")), "ner_tags": tags}
        )
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = prepared(made, data_dir=None)
    train, evaluation = task.build_datasets()
    assert (len(train), list(evaluation)) == (2, ["", "test"])
    assert task.collate([train[0]])["labels"].tolist() == [[-100, 3, 0, 1, 2, -100]]
    assert [split for *_, split in asked] == ["train", "validation", "test"]
    assert {one[:2] for one in asked} == {("eriktks/conll2003", "refs/convert/parquet")}
