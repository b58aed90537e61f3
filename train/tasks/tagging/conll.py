"""Read CoNLL's files as sentences of words with tags; a wrong row is refused with file and line."""

import re
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from muster.errors import UsageError
from train.tasks.sources import files
from train.tasks.sources.files import numbered_lines

OUTSIDE = "O"
TAG = re.compile(r"O|[BI]-\S+")
NAMES = {"train": ("train.txt",), "valid": ("valid.txt", "dev.txt")}  # a test set need not be


class Sentence(NamedTuple):
    """One sentence of w words."""

    words: list[str]
    tags: list[str]
    line: int  # of its first word


def find(folder: Path | None) -> dict[str, list[Path]]:
    """The file of each set in `folder`; the test set may be missing.

    Raises:
        UsageError: the folder or a file is missing; the message names what is expected.
    """
    what = "ner is read from train.txt, valid.txt (or dev.txt) and test.txt in CoNLL's columns"
    found = {name: [path] for name, path in files.find(folder, NAMES, what).items()}
    test = found["train"][0].with_name("test.txt")
    return found | ({"test": [test]} if test.is_file() else {})


def read(path: Path) -> list[Sentence]:
    """All sentences: one word a line, the word first and its tag last, blank lines between.

    Raises:
        UsageError: the file is empty, not UTF-8, or holds a wrong row or tag.
    """
    sentences, columns = list[Sentence](), 0
    # Split only at blanks and tabs: a word may contain other separators, such as a no-break
    # space.
    rows = ((at, re.split(r"[ \t]+", line.strip(" \t"))) for at, line in numbered_lines(path))
    for is_between, group in groupby(rows, lambda row: row[1][0] in ("", "-DOCSTART-")):
        if is_between:
            continue
        found = list(group)
        columns = columns or max(2, len(found[0][1]))
        for number, fields in found:
            if len(fields) != columns:
                raise UsageError(
                    f"{path}:{number}: expected {columns} columns, the word first and its tag "
                    f"last, got {' '.join(fields)[:60]!r}"
                )
            if not TAG.fullmatch(fields[-1]):
                raise UsageError(
                    f"{path}:{number}: expected O, B-TYPE or I-TYPE as tag, got {fields[-1]!r}"
                )
        words, tags = ([fields[column] for _, fields in found] for column in (0, -1))
        sentences.append(Sentence(words, tags, line=found[0][0]))
    if not sentences:
        raise UsageError(f"{path}: no sentences in it")
    return sentences


def tags_of(sentences: list[Sentence]) -> list[str]:
    """The tags that occur, `O` first."""
    found = {tag for sentence in sentences for tag in sentence.tags} - {OUTSIDE}
    return [OUTSIDE, *sorted(found, key=lambda tag: (tag[2:], tag))]


def refuse_unknown(path: Path, sentences: list[Sentence], known: list[str]) -> None:
    """Refuse tags that the training file does not have.

    Raises:
        UsageError: there is one; the message names file and line.
    """
    for sentence in sentences:
        for line, tag in enumerate(sentence.tags, sentence.line):
            if tag not in known:
                it_has = f"the training file has no tag {tag!r}; it has {', '.join(known)}"
                raise UsageError(f"{path}:{line}: {it_has}")
