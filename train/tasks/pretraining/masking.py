"""Some tokens are hidden, and what they were is to be guessed: BERT's 80/10/10."""

import math
from random import Random
from typing import NamedTuple

MASKED, REPLACED = 0.8, 0.1  # shares of what is to be guessed; the rest is left as it is


class Vocabulary(NamedTuple):
    """What masking has to know of a tokenizer."""

    size: int
    mask: int
    special: frozenset[int]  # never to be guessed
    continues: frozenset[int]  # pieces that continue a word: "##s"


class Masked(NamedTuple):
    """A sample of t tokens, some of them hidden."""

    tokens: list[int]  # t, what the model sees
    positions: list[int]  # of what is to be guessed, ascending
    targets: list[int]  # what was there


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
    """How many tokens of one sample are hidden at most, as NVIDIA's BERT has it."""
    return math.ceil(share * max_seq_length)


def _words_in_random_order(
    tokens: list[int], vocabulary: Vocabulary, rng: Random, whole_word: bool
) -> list[list[int]]:
    """Positions that are hidden together."""
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
