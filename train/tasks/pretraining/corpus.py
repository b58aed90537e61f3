"""Plain text becomes documents of sentences, and these token ids, in chunks that fit a sample."""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from muster.errors import UsageError
from train.tasks.language.tokens import BATCH
from train.tasks.sources.files import folder_of, numbered_lines

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


TEXT = (".txt", ".tokens", ".raw")  # the last two are WikiText's
SHARDS = (".hdf5", ".h5")
SETS = {"valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}
NOT_TEXT = ("vocab.txt", "readme.txt", "license.txt", "requirements.txt")
MARKS = 3  # [CLS] A [SEP] B [SEP]
Thing = TypeVar("Thing")


def encode(tokenizer: Any, documents: Iterable[Document], room: int) -> dict[str, Tensor]:
    """The corpus as tensors, four bytes a token.

    A chunk is as many sentences of one document, in a row, as fit into `room` tokens, at least
    two tokens; a longer sentence is cut.

    Returns:
        input_ids: int32 (all tokens,); sentences: int64 (s + 1,), sentence i is tokens
        [sentences[i], sentences[i + 1]); documents: int64 (d + 1,), of sentences likewise;
        chunks: int64 (c, 3), each document, first sentence and the one behind the last.
    """
    tokens, ends, document_ends = array("i"), array("q", [0]), array("q", [0])
    chunks = array("q")
    for part in _batches(documents):
        counts = [len(document) for document in part]
        rows = iter(_tokenised(tokenizer, chain.from_iterable(part)))
        for count in counts:
            first = len(ends) - 1
            for sentence in islice(rows, count):
                for start in range(0, len(sentence), room):
                    tokens.extend(sentence[start : start + room])
                    ends.append(len(tokens))
            own = ends[first:]
            pieces = list(_chunks(own, room))
            if pieces:
                number = len(document_ends) - 1
                for start, end in pieces:
                    chunks.extend((number, first + start, first + end))
                document_ends.append(len(ends) - 1)
            else:  # empty, or a single token: it cannot make a pair
                del tokens[ends[first] :]
                del ends[first + 1 :]
    return {
        "input_ids": torch.tensor(tokens, dtype=torch.int32),
        "sentences": torch.tensor(ends),
        "documents": torch.tensor(document_ends),
        "chunks": torch.tensor(chunks, dtype=torch.int64).view(-1, 3),
    }


def refuse_few(where: str, corpus: dict[str, Tensor]) -> None:
    """Refuse a set with a single document: a random next sentence must come from another one.

    Raises:
        UsageError: there are fewer than two documents.
    """
    count = len(corpus["documents"]) - 1
    if count < 2:
        raise UsageError(
            f"{where} has {count} document{'s'[: count != 1]}, but a random next sentence comes "
            "from another one; put blank lines between documents"
        )


def _tokenised(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    for part in _batches(texts):
        yield from tokenizer(
            part, add_special_tokens=False, return_attention_mask=False, verbose=False
        )["input_ids"]


def _batches(things: Iterable[Thing]) -> Iterator[list[Thing]]:
    rest = iter(things)
    while part := list(islice(rest, BATCH)):
        yield part


def _chunks(ends: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Runs of sentences that fit into `room`; `ends[i]` is where sentence i begins."""
    start = 0
    for at, (_, end) in enumerate(pairwise(ends)):
        if end - ends[start] > room:
            if ends[at] - ends[start] > 1:
                yield start, at
            start = at
    if ends[-1] - ends[start] > 1:
        yield start, len(ends) - 1


def find(data_dir: Path | None) -> dict[str, list[Path]]:
    """The files of `train` and, where there are some, `valid` and `test`; all of one kind.

    A file belongs to a set where a word of its name, or of a folder below the folder, says so:
    `valid.txt`, `wiki.test.tokens`, `books_test_3.hdf5`, `validation/0.h5`. All others train.

    Raises:
        UsageError: there is no folder, nothing to train on, or text next to shards.
    """
    folder = folder_of(data_dir)
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in TEXT + SHARDS and path.is_file() and path.name.lower() not in NOT_TEXT:
            sets.setdefault(_set_of(path.relative_to(folder)), []).append(path)
    if "train" not in sets:
        known = ", ".join(str(path.name) for paths in sets.values() for path in paths)
        raise UsageError(
            f"--data-dir {folder} has nothing to train on, no {', '.join(TEXT + SHARDS)}"
            + (f" but those to evaluate on: {known}" if known else "")
        )
    kinds = {path.suffix in SHARDS for paths in sets.values() for path in paths}
    if len(kinds) > 1:
        raise UsageError(f"--data-dir {folder} has text and HDF5 shards; give a folder of one kind")
    return sets


def are_shards(sets: dict[str, list[Path]]) -> bool:
    """Whether the files from `find` are HDF5, not text."""
    return sets["train"][0].suffix in SHARDS


def _set_of(path: Path) -> str:
    words = re.split(r"[^a-z]+", str(path).lower())
    return next((SETS[word] for word in words if word in SETS), "train")
