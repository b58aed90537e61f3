"""NER learns a small set in CoNLL's format; pieces, words, tags and models fit together.

Files are read with their quirks; errors name the file and line. Scores equal seqeval's.
"""

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import UsageError
from tests.fuzzing import fuzzed
from tests.train.tasks.conll import TRAIN, WORDS
from tests.train.tasks.text.made import MODEL as SMALL
from tests.train.tasks.text.made import build, prepared, refusal, small, trained
from train.tasks import ner
from train.tasks.ner import Entities

MODEL = {**SMALL, "vocab_size": 20, "max_position_embeddings": 24}


@pytest.fixture
def ner_folder(tmp_path):
    """Make files in CoNLL's format, a vocabulary and a model's configuration."""
    (tmp_path / "ner").mkdir()
    for name, text in (("train", TRAIN * 10), ("dev", TRAIN * 2), ("test", TRAIN)):
        (tmp_path / "ner" / f"{name}.txt").write_text(text)
    return small(tmp_path, WORDS, MODEL)


def test_ner_learns_and_scores_entities_of_both_sets(ner_folder):
    history, _ = trained(ner_folder, "ner", batch_size=4, epochs=8)
    (scores,) = history.evaluations
    assert scores.samples == 4 + 2
    for name in ("precision", "recall", "f1", "f1_LOC", "f1_PER", "f1_test", "f1_PER_test"):
        assert scores.metrics[name] == 1.0
    assert scores.metrics["eval_loss"] < 0.3


def test_first_token_of_a_word_has_its_tag(ner_folder):
    task = prepared(ner_folder, "ner")
    batch = task.collate(list(task.build_datasets().evaluation["test"]))
    # [CLS] Bo ##b ##by saw Ann in New York . [SEP]; [CLS] Ann saw York . [SEP]
    assert batch["labels"].tolist() == [
        [-100, 3, -100, -100, 0, 3, 0, 1, 2, 0, -100],
        [-100, 3, 0, 1, 0, -100, *[-100] * 5],
    ]
    assert batch["attention_mask"].sum(1).tolist() == [11, 6]
    assert task.units(batch).tolist() == [11]


def test_ner_loss_equals_the_models_mean_over_words(ner_folder):
    task = prepared(ner_folder, "ner")
    model = task.build_model().eval()
    batch = task.collate(list(task.build_datasets().train)[:3])
    output = task.forward(model, batch)
    assert output.loss.shape == (1,) and output.logits.shape == (3, 11, 4)
    assert output.loss.item() == pytest.approx(model(**batch).loss.item(), abs=1e-6)


def test_words_beyond_max_seq_length_are_counted_in_a_warning(ner_folder, caplog):
    task = prepared(ner_folder, "ner", max_seq_length=8)
    assert "test set: 3 words are left out" in caplog.text
    batch = task.collate(list(task.build_datasets().train)[:1])
    assert batch["labels"].tolist() == [[-100, 3, -100, -100, 0, 3, 0, -100]]


def test_tagger_with_other_tags_is_refused(ner_folder):
    from transformers import AutoModelForTokenClassification, BertConfig

    config = BertConfig(**MODEL, id2label={0: "O", 1: "B-ORG"})
    AutoModelForTokenClassification.from_config(config).save_pretrained(ner_folder / "tuned")
    message = "has 2 labels (O, B-ORG), but the training set has 4 (O, B-LOC, I-LOC, B-PER)"
    assert message in refusal(ner_folder, "ner", model=str(ner_folder / "tuned"))


def test_text_classifier_as_tagger_is_refused_without_new_head(ner_folder):
    """Its weights have the same names as a tagger's, and here even the same shape."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(ner_folder / "config.json", num_labels=4)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(ner_folder / "model")
    message = refusal(ner_folder, "ner", model=str(ner_folder / "model"))
    assert "for SequenceClassification, not TokenClassification, but the training set" in message
    assert "--new-head" in message
    task = prepared(ner_folder, "ner", model=str(ner_folder / "model"), new_head=True)
    assert task.build_model().config.label2id == {"O": 0, "B-LOC": 1, "I-LOC": 2, "B-PER": 3}


PIECES = [
    b"\t",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b" ",
    b"O",
    b"B-",
    b"-DOCSTART-",
    b"a I-X\n",
    b"\n\n",
]


@fuzzed(st.lists(st.sampled_from(PIECES) | st.binary(max_size=4)))
def test_random_bytes_as_conll_are_read_or_refused_by_file(pieces):
    with TemporaryDirectory() as folder:
        path = Path(folder, "train.txt")
        for start in (b"", b"a B-X\nb O\n"):
            path.write_bytes(start + b"".join(pieces))
            try:
                sentences = ner.read(path)
            except UsageError as error:
                assert str(error).startswith(str(path))
            else:
                assert sentences and all(len(one.words) == len(one.tags) > 0 for one in sentences)


def test_evaluation_tag_unknown_to_training_is_refused(ner_folder):
    path = ner_folder / "ner" / "dev.txt"
    path.write_text("Ann B-PER\nsaw I-PER\n")
    assert f"{path}:2: the training file has no tag 'I-PER'" in refusal(ner_folder, "ner")


def test_valid_or_dev_file_is_read_and_test_file_is_optional(ner_folder):
    folder = ner_folder / "ner"
    prepared(ner_folder, "ner")
    (folder / "valid.txt").write_text("Ann B-PER\n")  # comes before dev.txt
    (folder / "test.txt").unlink()
    assert not build(ner_folder, "ner").is_prepared()
    ((name, samples),) = prepared(ner_folder, "ner").build_datasets().evaluation.items()
    assert (name, len(samples)) == ("", 1)
    (folder / "valid.txt").unlink()
    (folder / "dev.txt").unlink()
    assert "has no valid.txt or dev.txt; " in refusal(ner_folder, "ner")


def test_ner_set_of_the_hub_is_read_by_its_columns(ner_folder, hub):
    from datasets import ClassLabel, List, Value

    rows = {"tokens": [["Ann", "saw", "New", "York"], [], ["Ann"]]}
    rows |= {"ner_tags": [[1, 0, 2, 3], [], [1]]}
    tags = List(ClassLabel(names=["O", "B-PER", "B-LOC", "I-LOC"]))
    asked = hub(rows, tokens=List(Value("string")), ner_tags=tags)
    task = prepared(ner_folder, "ner", data_dir=None)
    train, evaluation = task.build_datasets()
    assert (len(train), list(evaluation)) == (2, ["", "test"])
    assert task.collate([train[0]])["labels"].tolist() == [[-100, 3, 0, 1, 2, -100]]
    home = ("eriktks/conll2003", "refs/convert/parquet")
    assert asked == [(*home, split) for split in ("train", "validation", "test")]


def read(tmp_path, text):
    (tmp_path / "train.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
    return ner.read(tmp_path / "train.txt")


TWO = [(["EU", "rejects"], ["B-ORG", "O"], 3), (["Peter"], ["I-PER"], 6)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\nPeter NNP I-PER\n", TWO),
        (" \r\n\r\nEU\tB-ORG\r\nrejects\tO\r\n \r\nPeter\tI-PER", TWO),
        ("EU O\n-DOCSTART- O\nPeter O\n", [(["EU"], ["O"], 1), (["Peter"], ["O"], 3)]),
        ("1\u00a0000 O\n", [(["1\u00a0000"], ["O"], 1)]),
    ],
)
def test_conll_with_tabs_crlf_document_marks_and_odd_blanks_is_read(tmp_path, text, sentences):
    assert read(tmp_path, text) == sentences


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EU NNP B-ORG\nrejects\n", ":2: expected 3 columns, "),
        ("EU NNP B-ORG\n\nrejects O\n", ":3: expected 3 columns"),
        ("EU\n", ":1: expected 2 columns"),
        ("EU O\nPeter S-PER\n", ":2: expected the tag O, B-TYPE or I-TYPE, got 'S-PER'"),
        ("-DOCSTART- O\n\n", " contains no sentences"),
        ("EU O\n\udcff O\n", ":2: not valid UTF-8"),
    ],
)
def test_wrong_conll_row_is_named_by_line(tmp_path, text, message):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    assert str(error.value).startswith(f"{tmp_path}/train.txt{message}")


TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "I-X-Y"]
# Sentences, with (predicted, gold) for each word.
corpora = st.lists(
    st.lists(st.tuples(*[st.sampled_from(TAGS)] * 2), min_size=1, max_size=12), min_size=1
)


@settings(max_examples=400, deadline=None)
@given(corpora, st.integers(1, 4))
def test_entity_scores_equal_seqeval_on_any_number_of_ranks(corpus, ranks):
    from seqeval import metrics

    predicted, gold = ([[pair[at] for pair in one] for one in corpus] for at in (0, 1))
    parts = [Entities(TAGS) for _ in range(ranks)]
    for at, sentence in enumerate(zip(predicted, gold, strict=True)):
        parts[at % ranks].count(*sentence)
    whole = Entities(TAGS)
    whole.state = torch.stack([part.state for part in parts]).sum(0)
    found = whole.compute()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about nothing to count, which gives 0 in both
        for name in ("precision", "recall", "f1"):
            score = getattr(metrics, f"{name}_score")(gold, predicted)
            assert found[name] == pytest.approx(score)
        report = metrics.classification_report(gold, predicted, output_dict=True)
    for kind in ("LOC", "PER", "X-Y"):
        assert found[f"f1_{kind}"] == pytest.approx(report.get(kind, {}).get("f1-score", 0.0))
