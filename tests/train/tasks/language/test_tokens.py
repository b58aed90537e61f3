"""Sentences become the tokens of the user's vocabulary; what is none is refused."""

import json

import pytest

from tests.train.tasks.text.made import MODEL, WORDS, build, refusal

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them


def test_tokens_are_those_of_the_sentences(made):
    task = build(made)
    task.prepare()
    batch = task.collate([task.build_datasets().train[1]])
    text = " ".join(WORDS[token] for token in batch["input_ids"][0])
    assert text == '[CLS] the " cat sat sat . [SEP] a dog ran . [SEP]'
    assert batch["token_type_ids"][0].tolist() == [0] * 8 + [1] * 5


def test_long_samples_are_cut(made):
    task = build(made, max_seq_length=6)
    task.prepare()
    assert {len(sample["input_ids"]) for sample in task.build_datasets().train} == {6}


@pytest.mark.parametrize("lower_case", ["auto", "yes"])
def test_a_vocabulary_without_capitals_lower_cases(made, lower_case):
    task = build(made, lower_case=lower_case)
    task.prepare()
    first = task.build_datasets().train[0]["input_ids"]
    assert WORDS[first[1]] == "the"


def test_a_tokenizer_that_does_not_know_the_words_is_refused(made):
    (made / "vocab.txt").write_text("\n".join([*WORDS[:5], "xyz", "."]))
    message = refusal(build(made))
    assert "of the words are [UNK] to the tokenizer of" in message
    assert not (made / "cache").exists()
    (made / "vocab.txt").write_text("\n".join([*WORDS[:5], "xyz", "The", ".", "A", "a", "the"]))
    assert "[UNK]" in refusal(build(made))


def test_case_is_kept_where_the_vocabulary_has_capitals(made):
    (made / "vocab.txt").write_text("\n".join([*WORDS, "The", "A"]))
    for lower_case, word in (("auto", "The"), ("no", "The"), ("yes", "the")):
        task = build(made, lower_case=lower_case)
        task.prepare()
        first = task.build_datasets().train[0]["input_ids"]
        assert [*WORDS, "The", "A"][first[1]] == word


def test_tokenizers_that_are_none_are_refused(made):
    empty = made / "empty"
    empty.mkdir()
    assert "has no tokenizer files" in refusal(build(made, tokenizer=str(empty)))
    (empty / "config.json").write_text(json.dumps(MODEL))  # which transformers 5 takes for one
    assert "has no tokenizer files" in refusal(build(made, tokenizer=None, model=str(empty)))
    assert "give a Hub name, a folder, or a vocab.txt" in refusal(
        build(made, tokenizer=str(made / "config.json"))
    )
    (made / "vocab.txt").write_text("the\ncat\n")
    assert "not a BERT vocabulary, it has no [PAD], [UNK]" in refusal(build(made))


def test_a_folder_with_a_bare_vocabulary_is_a_tokenizer(made):
    folder = made / "bare"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "The", "A"]))
    task = build(made, tokenizer=str(folder))
    task.prepare()
    assert task.build_datasets().train[0]["input_ids"][1] == len(WORDS)  # "The"
