"""Words become word pieces; the first piece of each carries its tag."""

import logging
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from muster.errors import UsageError
from train.tasks.sources.conll import Sentence
from train.tasks.text.tokens import BATCH

IGNORED = -100  # the tag of what is no word's first piece


def check(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that cannot tell which word a piece is of.

    Raises:
        UsageError: it is not one of the fast ones.
    """
    if not tokenizer.is_fast:
        raise UsageError(
            f"--tokenizer {name} has no fast form, which alone tells the word of each piece; "
            "give another, such as bert-base-cased"
        )


def encode(
    tokenizer: Any, name: str, sentences: list[Sentence], tags: list[str], max_seq_length: int
) -> dict[str, Tensor]:
    """The pieces of the n sentences of set `name`, end to end, and what cuts them apart.

    Returns:
        input_ids, tags and, where the tokenizer makes them, token_type_ids: int32 (all pieces,);
        tags are numbers in `tags`, or `IGNORED`; offsets: int64 (n + 1,), sentence i is
        [offsets[i], offsets[i + 1]).
    """
    numbers = {tag: number for number, tag in enumerate(tags)}
    flat: dict[str, list[int]] = {"tags": []}
    lengths: list[int] = []
    for start in range(0, len(sentences), BATCH):
        part = sentences[start : start + BATCH]
        encoded = tokenizer(
            [sentence.words for sentence in part],
            is_split_into_words=True,
            truncation=True,
            max_length=max_seq_length,
            return_attention_mask=False,
        )
        for key, rows in encoded.items():
            flat.setdefault(key, []).extend(piece for row in rows for piece in row)
        for row, sentence in enumerate(part):
            flat["tags"] += _of_first_pieces(encoded.word_ids(row), sentence, numbers)
        lengths += map(len, encoded["input_ids"])
    lost = sum(len(sentence.words) for sentence in sentences)
    lost -= sum(tag != IGNORED for tag in flat["tags"])
    if lost:
        logging.getLogger(__name__).warning(
            "%s set: %d words are beyond --max-seq-length %d, or nothing but control characters; "
            "they are left out of training and scores",
            name,
            lost,
            max_seq_length,
        )
    tensors = {key: torch.tensor(values, dtype=torch.int32) for key, values in flat.items()}
    return {**tensors, "offsets": torch.tensor([0, *accumulate(lengths)])}


def _of_first_pieces(
    words: list[int | None], sentence: Sentence, numbers: dict[str, int]
) -> list[int]:
    """The tag of each piece that begins a word; `words` has the word that each piece is of."""
    return [
        IGNORED if word is None or word == before else numbers[sentence.tags[word]]
        for before, word in pairwise([None, *words])
    ]
