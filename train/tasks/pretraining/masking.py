"""Hide some tokens, which the model is to predict: BERT's 80/10/10."""

import math
from random import Random
from typing import NamedTuple

MASKED, REPLACED = 0.8, 0.1  # shares of the tokens to predict; the rest is left unchanged


class Vocabulary(NamedTuple):
    """The facts about a tokenizer that masking needs."""

    size: int
    mask: int
    special: frozenset[int]  # never to be predicted
    continues: frozenset[int]  # pieces that continue a word: "##s"


class Masked(NamedTuple):
    """A sample of t tokens, some of them hidden."""

    tokens: list[int]  # t, the model's input
    positions: list[int]  # of the tokens to predict, ascending
    targets: list[int]  # the original tokens


def hide(
    tokens: list[int],
    vocabulary: Vocabulary,
    rng: Random,
    *,
    share: float,
    most: int,
    whole_word: bool,
) -> Masked:
    """Hide `share` of the tokens, at least one and at most `most`.

    With `whole_word`, all pieces of a word or none, as long as they fit.
    """
    wanted = min(most, max(1, round(share * len(tokens))))
    seen = list(tokens)
    chosen: list[int] = []
    for word in _words_in_random_order(tokens, vocabulary, rng, whole_word):
        if len(chosen) == wanted:
            break
        if len(chosen) + len(word) <= wanted:
            chosen += word
    for position in chosen:
        draw = rng.random()
        if draw < MASKED:
            seen[position] = vocabulary.mask
        elif draw < MASKED + REPLACED:
            seen[position] = rng.randrange(vocabulary.size)
    chosen.sort()
    return Masked(seen, chosen, [tokens[position] for position in chosen])


def most_per_sample(share: float, max_seq_length: int) -> int:
    """The largest number of hidden tokens in one sample, as in NVIDIA's BERT."""
    return math.ceil(share * max_seq_length)


def _words_in_random_order(
    tokens: list[int], vocabulary: Vocabulary, rng: Random, whole_word: bool
) -> list[list[int]]:
    """Groups of positions that are hidden together."""
    words: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in vocabulary.special:
            continue
        goes_on = whole_word and token in vocabulary.continues
        if goes_on and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    return words
