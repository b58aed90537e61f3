"""CoNLL's files are read with their quirks; what is wrong is named by file and line."""

import pytest

from muster.errors import UsageError
from train.tasks.tagging import conll

IOB2 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

-DOCSTART- -X- -X- O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def read(tmp_path, text):
    (tmp_path / "train.txt").write_text(text, encoding="utf-8")
    return conll.read(tmp_path / "train.txt")


def refusal(tmp_path, text):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    return str(error.value).removeprefix(str(tmp_path))


def test_sentences_are_cut_at_blank_lines_and_document_marks_are_left_out(tmp_path):
    assert read(tmp_path, IOB2) == [
        (["EU", "rejects", "German"], ["B-ORG", "O", "B-MISC"], 3),
        (["Peter", "Blackburn"], ["B-PER", "I-PER"], 9),
    ]


def test_tabs_two_columns_and_windows_ends_will_do(tmp_path):
    text = "EU\tI-ORG\r\nrejects\tO\r\n \r\nPeter\tI-PER"
    assert [one.words for one in read(tmp_path, text)] == [["EU", "rejects"], ["Peter"]]


def test_a_document_mark_ends_a_sentence_by_itself(tmp_path):
    text = "EU O\n-DOCSTART- O\nPeter O\n"
    assert [one.words for one in read(tmp_path, text)] == [["EU"], ["Peter"]]


def test_a_word_may_hold_odd_blanks(tmp_path):
    assert read(tmp_path, "1\u00a0000 O\n")[0].words == ["1\u00a0000"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("EU NNP B-ORG\nrejects\n", "/train.txt:2: expected 3 columns, the word first and its tag"),
        ("EU NNP B-ORG\n\nrejects O\n", "/train.txt:3: expected 3 columns"),
        ("EU\n", "/train.txt:1: expected 2 columns"),
        ("EU O\nPeter S-PER\n", "/train.txt:2: expected O, B-TYPE or I-TYPE as tag, got 'S-PER'"),
        ("EU B-\n", "/train.txt:1: expected O, B-TYPE or I-TYPE as tag, got 'B-'"),
        ("-DOCSTART- O\n\n", "/train.txt: no sentences in it"),
    ],
)
def test_wrong_rows_are_named(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"EU O\n\xff O\n")
    with pytest.raises(UsageError, match=r"train\.txt:2: not UTF-8 text"):
        conll.read(tmp_path / "train.txt")


def test_tags_have_an_order_of_their_own(tmp_path):
    sentences = read(tmp_path, IOB2 + "\nx x x B-LOC\n")
    assert conll.tags_of(sentences) == ["O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-PER"]


def test_files_are_found_by_either_name(tmp_path):
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("EU O\n")
    assert set(conll.find(tmp_path)) == {"train", "valid"}
    (tmp_path / "test.txt").write_text("EU O\n")
    (tmp_path / "valid.txt").write_text("EU O\n")
    found = conll.find(tmp_path)
    assert (found["valid"][0].name, found["test"][0].name) == ("valid.txt", "test.txt")


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        conll.find(tmp_path / "no")
    (tmp_path / "train.txt").write_text("EU O\n")
    with pytest.raises(UsageError, match=r"has no valid\.txt or dev\.txt; ner is read from"):
        conll.find(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        conll.find(tmp_path / "train.txt")
