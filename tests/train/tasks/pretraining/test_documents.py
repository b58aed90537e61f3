"""Text becomes documents of sentences, from plain files and from WikiText's."""

import pytest

from muster.errors import UsageError
from train.tasks.pretraining import corpus

WIKITEXT = """
 = First =

 It is <unk> . It is 10 @,@ 000 years old .

 = = Section = =

 More of it .

 = Second title =

 Here .
"""


def read(tmp_path, *texts):
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(text)
    return list(corpus.read(paths, "[UNK]"))


def test_blank_line_ends_a_document(tmp_path):
    text = "\n\nOne.\nTwo.\n\n  \nThree.\n"
    assert read(tmp_path, text, "Four.") == [["One.", "Two."], ["Three."], ["Four."]]


def test_wikitext_titles_begin_documents_and_its_escapes_are_undone(tmp_path):
    assert read(tmp_path, WIKITEXT) == [
        ["It is [UNK] .", "It is 10,000 years old .", "More of it ."],
        ["Here ."],
    ]


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("It rains. It pours! Why? Because.", ["It rains.", "It pours!", "Why?", "Because."]),
        ("It is v. good, e.g. in May.", ["It is v. good, e.g. in May."]),
        ("By J. Smith of H. americanus. 5 came.", ["By J. Smith of H. americanus.", "5 came."]),
        ('He said so. "No," she said.', ["He said so.", '"No," she said.']),
        ("", []),
    ],
)
def test_line_is_cut_into_sentences(line, want):
    assert corpus.sentences(line) == want


def test_text_files_are_sorted_into_sets_by_name(tmp_path):
    names = "a.txt contest.txt wiki.valid.tokens sub/Test_1.raw x.md vocab.txt".split()
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).write_text("x")
    assert corpus.find(tmp_path) == {
        "train": [tmp_path / "a.txt", tmp_path / "contest.txt"],
        "valid": [tmp_path / "wiki.valid.tokens"],
        "test": [tmp_path / "sub" / "Test_1.raw"],
    }


def test_folder_without_training_text_is_refused(tmp_path):
    for name, message in (
        ("readme.txt", r"no training files \(.txt, .tokens, .raw, .hdf5, .h5\)$"),
        ("valid.txt", r"evaluation files: valid\.txt"),
        ("a.h5", "both text and HDF5"),
    ):
        (tmp_path / name).write_text("x")
        with pytest.raises(UsageError, match=message):
            corpus.find(tmp_path)
