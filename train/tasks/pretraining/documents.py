"""Split plain text into documents of sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

from train.tasks.sources.files import numbered_lines

HEADING = re.compile(r"^ ?(=( =)*) .*\S \1 ?$")  # WikiText's: " = Title = ", " = = Section = = "
TITLE = re.compile(r"^ ?= [^=].* = ?$")
# After a full stop and before the start of a sentence; not after an initial, as in "J. Smith".
BOUNDARY = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[\"'\u201c\u2018(]?\s?[A-Z0-9])")
JOINER = re.compile(r" @([-.,])@ ")  # WikiText's "10 @,@ 000"

Document = list[str]


def read(paths: list[Path], unknown: str) -> Iterator[Document]:
    """The documents of all files, each a list of sentences.

    In a file with WikiText's headings a title begins a document; in any other file a blank line
    does. A line has one sentence or several, which are split. `unknown` replaces WikiText's <unk>.

    Raises:
        UsageError: a line is not UTF-8; the message names file and line.
    """
    for path in paths:
        is_wikitext = any(TITLE.match(line) for _, line in numbered_lines(path))
        document: Document = []
        for _, line in numbered_lines(path):
            if TITLE.match(line) if is_wikitext else not line.strip():
                if document:
                    yield document
                document = []
            elif is_wikitext and HEADING.match(line):
                continue
            else:
                if is_wikitext:
                    line = JOINER.sub(r"\1", line).replace("<unk>", unknown)
                document += sentences(line)
        if document:
            yield document


def sentences(line: str) -> list[str]:
    """The sentences of one line; none for a blank one."""
    return [sentence for sentence in BOUNDARY.split(line.strip()) if sentence]
