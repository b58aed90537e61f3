"""Read CoNLL's files as sentences of words with tags; a wrong row is refused with file and line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from muster.errors import UsageError
from train.tasks.sources.files import numbered_lines, require_folder

OUTSIDE = "O"
TAG = re.compile(r"O|[BI]-\S+")
NAMES = {"train": ("train.txt",), "valid": ("valid.txt", "dev.txt"), "test": ("test.txt",)}


class Sentence(NamedTuple):
    """One sentence of w words."""

    words: list[str]
    tags: list[str]
    line: int  # of its first word


def find(folder: Path) -> dict[str, Path]:
    """The file of each set in `folder`; the test set may be missing.

    Raises:
        UsageError: the folder or a file is missing; the message names what is expected.
    """
    require_folder(folder)
    files: dict[str, Path] = {}
    for name, known in NAMES.items():
        present = [folder / file for file in known if (folder / file).is_file()]
        if not present and name != "test":
            raise UsageError(
                f"--data-dir {folder} has no {' or '.join(known)}; ner is read from train.txt, "
                "valid.txt (or dev.txt) and test.txt in CoNLL's columns"
            )
        if present:
            files[name] = present[0]
    return files


def read(path: Path) -> list[Sentence]:
    """All sentences: one word a line, the word first and its tag last, blank lines between.

    Raises:
        UsageError: the file is empty, not UTF-8, or holds a wrong row or tag.
    """
    sentences = list(_sentences(path))
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
        for word, tag in enumerate(sentence.tags):
            if tag not in known:
                raise UsageError(
                    f"{path}:{sentence.line + word}: the training file has no tag {tag!r}; "
                    f"it has {', '.join(known)}"
                )


def _sentences(path: Path) -> Iterator[Sentence]:
    open_one, columns = Sentence([], [], 0), 0
    for number, line in numbered_lines(path):
        # Split only at blanks and tabs: a word may contain other separators, such as a no-break
        # space.
        fields = re.split(r"[ \t]+", line.strip(" \t"))
        if fields == [""] or fields[0] == "-DOCSTART-":
            if open_one.words:
                yield open_one
            open_one = Sentence([], [], 0)
            continue
        columns = columns or len(fields)
        if len(fields) < 2 or len(fields) != columns:
            raise UsageError(
                f"{path}:{number}: expected {max(columns, 2)} columns, the word first and its tag "
                f"last, got {line[:60]!r}"
            )
        if not TAG.fullmatch(fields[-1]):
            raise UsageError(
                f"{path}:{number}: expected O, B-TYPE or I-TYPE as tag, got {fields[-1]!r}"
            )
        if not open_one.words:
            open_one = Sentence([], [], number)
        open_one.words.append(fields[0])
        open_one.tags.append(fields[-1])
    if open_one.words:
        yield open_one
