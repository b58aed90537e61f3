"""Turn documents into token ids with sentences, cut into chunks that fit into a sample."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from muster.errors import UsageError
from train.tasks.language.tokens import BATCH
from train.tasks.pretraining.documents import Document

MARKS = 3  # [CLS] A [SEP] B [SEP]
Thing = TypeVar("Thing")


def encode(tokenizer: Any, documents: Iterable[Document], room: int) -> dict[str, Tensor]:
    """The corpus as tensors, four bytes per token.

    A chunk is as many consecutive sentences of one document as fit into `room` tokens, at least two
    tokens; a longer sentence is cut.

    Returns:
        tokens: int32 (all tokens,); sentences: int64 (s + 1,), sentence i is tokens
        [sentences[i], sentences[i + 1]); documents: int64 (d + 1,), the same for sentences;
        chunks: int64 (c, 3), for each its document, its first sentence and the one after its last.
    """
    tokens, ends, document_ends = array("i"), array("q", [0]), array("q", [0])
    chunks = array("q")
    for part in _batches(documents):
        counts = [len(document) for document in part]
        rows = iter(_tokenised(tokenizer, chain.from_iterable(part)))
        for count in counts:
            first = len(ends) - 1
            for _ in range(count):
                for piece in _pieces(next(rows), room):
                    tokens.extend(piece)
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
        "tokens": torch.tensor(tokens, dtype=torch.int32),
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


def _pieces(sentence: list[int], room: int) -> Iterator[list[int]]:
    for start in range(0, len(sentence), room):
        yield sentence[start : start + room]


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
