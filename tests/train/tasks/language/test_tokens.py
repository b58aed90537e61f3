"""Sentences become the tokens of the user's vocabulary; what is none is refused."""

import json

import pytest

from tests.train.tasks.text.made import MODEL, WORDS, prepared, refusal, small

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

CAPITALS = [*WORDS, "The", "A"]


def test_tokens_are_those_of_the_sentences(made):
    task = prepared(made)
    batch = task.collate([task.build_datasets().train[1]])
    text = " ".join(WORDS[token] for token in batch["input_ids"][0])
    assert text == '[CLS] the " cat sat sat . [SEP] a dog ran . [SEP]'
    assert batch["token_type_ids"][0].tolist() == [0] * 8 + [1] * 5


def test_long_samples_are_cut(made):
    train = prepared(made, max_seq_length=6).build_datasets().train
    assert {len(sample["input_ids"]) for sample in train} == {6}


@pytest.mark.parametrize(
    ("words", "lower_case", "first"),
    [
        (WORDS, "auto", "the"),
        (CAPITALS, "auto", "The"),
        (CAPITALS, "no", "The"),
        (CAPITALS, "yes", "the"),
    ],
)
def test_case_is_kept_where_the_vocabulary_has_capitals(made, words, lower_case, first):
    folder = small(made / "rte", words)
    (folder / "config.json").unlink()
    for tokenizer in (folder, folder / "vocab.txt"):
        task = prepared(made, tokenizer=str(tokenizer), lower_case=lower_case)
        assert words[task.build_datasets().train[0]["input_ids"][1]] == first


def test_a_tokenizer_that_does_not_know_the_words_is_refused(made):
    small(made, [*WORDS[:5], "xyz", "."])
    message = refusal(made)
    assert "of the words are [UNK] to the tokenizer of" in message
    assert not (made / "cache").exists()
    small(made, [*WORDS[:5], "xyz", "The", ".", "A", "a", "the"])
    assert "[UNK]" in refusal(made)


def test_tokenizers_that_are_none_are_refused(made):
    empty = made / "empty"
    empty.mkdir()
    assert "has no tokenizer files" in refusal(made, tokenizer=str(empty))
    (empty / "config.json").write_text(json.dumps(MODEL))  # which transformers 5 takes for one
    assert "has no tokenizer files" in refusal(made, tokenizer=None, model=str(empty))
    other = str(made / "config.json")
    assert "give a Hub name, a folder, or a vocab.txt" in refusal(made, tokenizer=other)
    small(made, ["the", "cat"])
    assert "not a BERT vocabulary, it has no [PAD], [UNK]" in refusal(made)
