"""Split words into word pieces; the first piece of each has the word's tag."""

import logging
from itertools import pairwise
from typing import Any

from torch import Tensor

from muster.errors import UsageError
from train.tasks.language import tokens
from train.tasks.tagging.conll import Sentence

IGNORED = -100  # the tag of other pieces than a word's first, and of padding


def check(tokenizer: Any, name: str) -> None:
    """Refuse a tokenizer that cannot tell to which word a piece belongs.

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
    """The pieces of the n sentences of set `name` in one row, and where each sentence begins.

    Returns:
        input_ids, labels and, if the tokenizer makes them, token_type_ids: int32 (all pieces,);
        labels are numbers in `tags`, or `IGNORED`; offsets: int64 (n + 1,), sentence i is
        [offsets[i], offsets[i + 1]).
    """
    numbers = {tag: number for number, tag in enumerate(tags)}

    def add_tags(encoded: Any, start: int) -> dict[str, list[list[int]]]:
        part = enumerate(sentences[start : start + tokens.BATCH])
        return {"labels": [_of_first_pieces(encoded.word_ids(r), one, numbers) for r, one in part]}

    words = [[sentence.words for sentence in sentences]]
    found = tokens.encode(tokenizer, words, max_seq_length, add_tags, is_split_into_words=True)
    lost = sum(len(sentence.words) for sentence in sentences)
    lost -= int((found["labels"] != IGNORED).sum())
    if lost:
        logging.getLogger(__name__).warning(
            "%s set: %d words are beyond --max-seq-length %d, or nothing but control characters; "
            "they are left out of training and scores",
            name,
            lost,
            max_seq_length,
        )
    return found


def _of_first_pieces(
    words: list[int | None], sentence: Sentence, numbers: dict[str, int]
) -> list[int]:
    """The tag of each piece that begins a word; `words` has the word of each piece."""
    return [
        IGNORED if word is None or word == before else numbers[sentence.tags[word]]
        for before, word in pairwise([None, *words])
    ]
