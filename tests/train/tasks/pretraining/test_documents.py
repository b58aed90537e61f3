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


def test_blank_lines_end_documents(tmp_path):
    text = "\n\nOne.\nTwo.\n\n  \nThree.\n"
    assert read(tmp_path, text, "Four.") == [["One.", "Two."], ["Three."], ["Four."]]


def test_wikitexts_titles_begin_documents_and_its_marks_are_undone(tmp_path):
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
def test_a_line_is_cut_at_the_ends_of_its_sentences(line, want):
    assert corpus.sentences(line) == want


def names(sets, folder):
    return {name: [str(p.relative_to(folder)) for p in paths] for name, paths in sets.items()}


def test_files_are_sorted_into_sets_by_the_words_of_their_names(tmp_path):
    for name in (
        "a.txt",
        "contest.txt",
        "wiki.valid.tokens",
        "sub/Test_1.raw",
        "x.md",
        "vocab.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert names(corpus.find(tmp_path), tmp_path) == {
        "train": ["a.txt", "contest.txt"],
        "valid": ["wiki.valid.tokens"],
        "test": ["sub/Test_1.raw"],
    }


def test_folders_that_cannot_be_trained_on_are_refused(tmp_path):
    for folder, message in (
        (None, "needs --data-dir: the folder with its files"),
        (tmp_path / "no", "does not exist"),
        (tmp_path, "has nothing to train on"),
    ):
        with pytest.raises(UsageError, match=message):
            corpus.find(folder)
    (tmp_path / "valid.txt").write_text("x")
    with pytest.raises(UsageError, match=r"but those to evaluate on: valid\.txt"):
        corpus.find(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.h5").write_text("x")
    with pytest.raises(UsageError, match="give a folder of one kind"):
        corpus.find(tmp_path)
