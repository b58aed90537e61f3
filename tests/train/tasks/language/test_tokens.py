"""Sentences become tokens of the user's vocabulary; files that are not one are refused."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st

from muster.errors import UsageError
from tests.fuzzing import fuzzed
from tests.train.tasks.text.made import MODEL, WORDS, prepared, refusal, small
from train.tasks.language import tokens

CAPITALS = [*WORDS, "The", "A"]


def test_two_sentences_become_one_row_of_tokens(glue):
    task = prepared(glue)
    batch = task.collate([task.build_datasets().train[1]])
    text = " ".join(WORDS[token] for token in batch["input_ids"][0])
    assert text == '[CLS] the " cat sat sat . [SEP] a dog ran . [SEP]'
    assert batch["token_type_ids"][0].tolist() == [0] * 8 + [1] * 5


def test_samples_are_cut_at_max_seq_length(glue):
    train = prepared(glue, max_seq_length=6).build_datasets().train
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
def test_lower_case_auto_follows_the_vocabulary(glue, words, lower_case, first):
    folder = small(glue / "rte", words)
    (folder / "config.json").unlink()
    for tokenizer in (folder, folder / "vocab.txt"):
        task = prepared(glue, tokenizer=str(tokenizer), lower_case=lower_case)
        assert words[task.build_datasets().train[0]["input_ids"][1]] == first


def test_tokenizer_with_mostly_unknown_words_is_refused(glue):
    small(glue, [*WORDS[:5], "xyz", "."])
    message = refusal(glue)
    assert "% of the words into [UNK]" in message
    assert not (glue / "cache").exists()
    small(glue, [*WORDS[:5], "xyz", "The", ".", "A", "a", "the"])
    assert "[UNK]" in refusal(glue)


def test_folder_or_file_without_a_tokenizer_is_refused(glue):
    empty = glue / "empty"
    empty.mkdir()
    assert "has no tokenizer file" in refusal(glue, tokenizer=str(empty))
    (empty / "config.json").write_text(json.dumps(MODEL))  # transformers 5 takes it for a tokenizer
    assert "has no tokenizer file" in refusal(glue, tokenizer=None, model=str(empty))
    other = str(glue / "config.json")
    assert "a Hub name, a folder, or a vocab.txt" in refusal(glue, tokenizer=other)
    small(glue, ["the", "cat"])
    assert "no [PAD], [UNK]" in refusal(glue)


def distilbert_tokenizer(folder):
    """Save a tokenizer with the same vocabulary but no token types, and return its folder."""
    tokenizer = tokens.load(str(folder / "vocab.txt"), "auto")
    tokenizer.save_pretrained(folder / "distilbert")
    settings = folder / "distilbert" / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **names}))
    return str(folder / "distilbert")


def test_repeated_line_of_a_vocabulary_is_refused_by_number(glue):
    (glue / "twice.txt").write_text("\n".join([*WORDS, "dog", "more"]) + "\n")
    line, first = len(WORDS) + 1, WORDS.index("dog") + 1
    message = f"twice.txt:{line}: 'dog' is also in line {first}"
    assert message in refusal(glue, tokenizer=str(glue / "twice.txt"))


WHOLE = "\n".join(WORDS).encode() + b"\n"


@fuzzed(st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"\xff", b"##s"]) | st.binary(max_size=4)))
def test_random_bytes_as_vocabulary_are_read_or_refused_by_file(pieces):
    with TemporaryDirectory() as folder:
        path = Path(folder, "vocab.txt")
        for start in (b"", WHOLE):
            path.write_bytes(start + b"".join(pieces))
            try:
                tokenizer = tokens.load(str(path), "auto")
            except UsageError as error:
                assert str(path) in str(error)
            else:
                used = tokenizer("the dog ran\r\0?")["input_ids"]
                assert max(used) < len(tokenizer)
                assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


def test_blank_lines_at_the_end_of_a_vocabulary_are_ignored(glue):
    (glue / "blank.txt").write_bytes(WHOLE + b"\n\r\n")
    assert len(tokens.load(str(glue / "blank.txt"), "auto")) == len(WORDS)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_tokenizer_file_that_is_an_lfs_pointer_is_named(glue, name):
    """Even if transformers would read it as a vocabulary of three words."""
    folder = glue / "tokens"
    folder.mkdir()
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4\nsize 9\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    message = f"--tokenizer {folder / name} is a Git LFS pointer, not the file itself"
    assert refusal(glue, tokenizer=str(folder)).startswith(message)


def test_cache_of_distilbert_is_not_used_for_bert(glue):
    prepared(glue, tokenizer=distilbert_tokenizer(glue))
    (sample, *_) = prepared(glue).build_datasets().train
    assert sample["token_type_ids"][-1] == 1
    assert len(list((glue / "cache").glob("*.pt"))) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model_input_names", ["input_ids"]),
        ("truncation_side", "left"),
        ("padding_side", "left"),
        ("split_special_tokens", True),
        ("unk_token", "a"),
    ],
)
def test_cache_key_has_the_tokenizers_settings(glue, name, value):
    one, other = (tokens.load(str(glue / "vocab.txt"), "auto") for _ in range(2))
    one("the cat", truncation=True, max_length=3)  # earlier use changes nothing
    assert tokens.identity(one) == tokens.identity(other)
    setattr(other, name, value)
    assert tokens.identity(one) != tokens.identity(other)


def test_cache_key_has_the_versions_of_the_tokenizer_libraries(glue, monkeypatch):
    tokenizer = tokens.load(str(glue / "vocab.txt"), "auto")
    before = tokens.identity(tokenizer)
    monkeypatch.setattr(tokens, "version", lambda name: f"another {name}")
    assert tokens.identity(tokenizer) != before


def test_cache_key_has_the_merges_of_slow_tokenizers(tmp_path):
    from transformers import CTRLTokenizer

    def identity(merges):
        files = [tmp_path / "vocab.json", tmp_path / "merges.txt"]
        files[0].write_text(json.dumps({"<unk>": 0, "a": 1, "b</w>": 2, "ab</w>": 3}))
        files[1].write_text(f"#version: 0.2\n{merges}\n")
        return tokens.identity(CTRLTokenizer(*map(str, files)))

    assert identity("a b</w>") == identity("a b</w>") != identity("b a</w>")
