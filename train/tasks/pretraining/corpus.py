"""Turn plain text into documents of sentences, and into token ids in chunks that fit a sample."""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from muster.errors import UsageError
from train.tasks.sources.files import folder_of, numbered_lines, refuse_stand_in

HEADING = re.compile(r"^ ?(=( =)*) .*\S \1 ?$")  # WikiText's: " = Title = ", " = = Section = = "
BLANK = re.compile(r"\s*$")
TITLE = re.compile(r"^ ?= [^=].* = ?$")
# After a full stop and before the start of a sentence; not after an initial, as in "J. Smith".
BOUNDARY = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)\s+(?=[\"'\u201c\u2018(]?\s?[A-Z0-9])")
JOINER = re.compile(r" @([-.,])@ ")  # WikiText's "10 @,@ 000"

Document = list[str]


def read(paths: list[Path], unknown: str) -> Iterator[Document]:
    """Read the documents of all files, each as a list of sentences.

    In a file with WikiText's headings, a title begins a document; in any other file, a blank line
    does. Lines with several sentences are split. `unknown` replaces WikiText's <unk>.

    Raises:
        UsageError: a line is not UTF-8; the message names the file and line.
    """
    for path in paths:
        is_wikitext = any(TITLE.match(line) for _, line in numbered_lines(path))
        between = TITLE if is_wikitext else BLANK
        lines = ((between.match(line) is None, line) for _, line in numbered_lines(path))
        for is_inside, group in groupby(lines, itemgetter(0)):
            own = [line for _, line in group if is_inside]
            if is_wikitext:
                text = [line for line in own if not HEADING.match(line)]
                own = [JOINER.sub(r"\1", line).replace("<unk>", unknown) for line in text]
            if document := [sentence for line in own for sentence in sentences(line)]:
                yield document


def sentences(line: str) -> list[str]:
    """Split a line into its sentences; a blank line has none."""
    return [sentence for sentence in BOUNDARY.split(line.strip()) if sentence]


TEXT = (".txt", ".tokens", ".raw")  # the last two are WikiText's
SHARDS = (".hdf5", ".h5")
SETS = {"valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}
NOT_TEXT = ("vocab.txt", "readme.txt", "license.txt", "requirements.txt")
MARKS = 3  # [CLS] A [SEP] B [SEP]
DOCUMENTS = 64  # the tokenizer gets the sentences of this many at a time


def encode(tokenizer: Any, documents: Iterable[Document], room: int) -> dict[str, Tensor]:
    """Encode the corpus as tensors, with four bytes per token.

    A chunk is as many consecutive sentences of one document as fit into `room` tokens, and has at
    least two tokens. A sentence that is longer than `room` is cut.

    Returns:
        input_ids: int32 (all tokens,); sentences: int64 (s + 1,), sentence i is tokens
        [sentences[i], sentences[i + 1]); documents: int64 (d + 1,), likewise for sentences;
        chunks: int64 (c, 3), for each its document, first sentence and the sentence after its last.
    """
    tokens, ends, document_ends = array("i"), array("q", [0]), array("q", [0])
    chunks, rest = array("q"), iter(documents)
    options = {"add_special_tokens": False, "return_attention_mask": False, "verbose": False}
    while part := list(islice(rest, DOCUMENTS)):
        rows = iter(tokenizer(list(chain.from_iterable(part)), **options)["input_ids"])
        for document in part:
            pieces = [
                sentence[start : start + room]
                for sentence in islice(rows, len(document))
                for start in range(0, len(sentence), room)
            ]
            number, first = len(document_ends) - 1, len(ends) - 1
            own = list(accumulate(map(len, pieces), initial=ends[-1]))
            if runs := list(_chunks(own, room)):  # otherwise at most one token, too few for a pair
                chunks.extend(chain(*((number, first + at, first + end) for at, end in runs)))
                tokens.extend(chain(*pieces))
                ends.extend(own[1:])
                document_ends.append(len(ends) - 1)
    return {
        "input_ids": torch.tensor(tokens, dtype=torch.int32),
        "sentences": torch.tensor(ends),
        "documents": torch.tensor(document_ends),
        "chunks": torch.tensor(chunks, dtype=torch.int64).view(-1, 3),
    }


def _chunks(ends: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Yield runs of sentences that fit into `room`; `ends[i]` is where sentence i begins."""
    start = 0
    for at, (_, end) in enumerate(pairwise(ends)):
        if end - ends[start] > room:
            if ends[at] - ends[start] > 1:
                yield start, at
            start = at
    if ends[-1] - ends[start] > 1:
        yield start, len(ends) - 1


def find(data_dir: Path | None) -> dict[str, list[Path]]:
    """Find the files of `train` and, if there are any, of `valid` and `test`; all of one kind.

    A file belongs to a set if a word in its name, or in the name of a subfolder, names the set:
    `valid.txt`, `wiki.test.tokens`, `books_test_3.hdf5`, `validation/0.h5`. All other files are
    for training.

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
            f"--data-dir {folder} has no training files ({', '.join(TEXT + SHARDS)})"
            + (f", only evaluation files: {known}" if known else "")
        )
    kinds = {path.suffix in SHARDS for paths in sets.values() for path in paths}
    if len(kinds) > 1:
        raise UsageError(
            f"--data-dir {folder} has both text and HDF5 shards"
            "\ntip: use a folder with only one kind"
        )
    for path in (path for paths in sets.values() for path in paths):
        refuse_stand_in(path)
    return sets


def _set_of(path: Path) -> str:
    words = re.split(r"[^a-z]+", str(path).lower())
    return next((SETS[word] for word in words if word in SETS), "train")
