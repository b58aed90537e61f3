"""Turn chunks of a corpus into pairs of segments with some tokens hidden, anew in every epoch.

Such a pair is a sample, whatever its source, and n of them are a batch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from train.model.rng import hash_seed
from train.tasks.base import Batch

MASKED, REPLACED = 0.8, 0.1  # shares of the tokens to predict; the rest is left unchanged


class PairSample(NamedTuple):
    """Two segments with t tokens, including their marks; m of the tokens are hidden."""

    tokens: list[int]  # t
    segments: list[int]  # t, of 0 and 1
    positions: list[int]  # m, of the tokens to predict
    targets: list[int]  # m
    is_random_next: int  # 1 if the second segment is from elsewhere


def collate(samples: Sequence[PairSample], padding: int, multiple: int) -> Batch:
    """n samples, padded to the longest, rounded up to a `multiple`.

    Returns:
        input_ids, token_type_ids and attention_mask: int64 (n, width); masked_positions in the
        flattened (n * width,), masked_labels: int64 (all m,); labels (n,).
    """
    width = -(-max(len(sample.tokens) for sample in samples) // multiple) * multiple
    rows = enumerate(samples)
    positions = [row * width + at for row, sample in rows for at in sample.positions]
    targets = [target for sample in samples for target in sample.targets]
    return {
        "input_ids": padded((sample.tokens for sample in samples), width, padding),
        "token_type_ids": padded((sample.segments for sample in samples), width),
        "attention_mask": padded(([1] * len(sample.tokens) for sample in samples), width),
        "masked_positions": torch.tensor(positions, dtype=torch.int64),
        "masked_labels": torch.tensor(targets, dtype=torch.int64),
        "labels": torch.tensor([sample.is_random_next for sample in samples]),
    }


def padded(rows: Iterable[list[int]], width: int, padding: int = 0) -> Tensor:
    """The n rows, filled up to `width`: int64 (n, width)."""
    return torch.tensor([row + [padding] * (width - len(row)) for row in rows])


class Masking(NamedTuple):
    """How much of a sample is hidden, and facts about the tokens that this requires."""

    vocabulary: int  # how many tokens there are
    mask: int
    special: frozenset[int]  # never to be predicted
    continues: frozenset[int]  # pieces that continue a word: "##s"
    share: float  # of the tokens to hide
    most: int  # hidden tokens of one sample
    whole_word: bool  # hide all pieces of a word or none, as long as they fit


class Masked(NamedTuple):
    """A sample of t tokens, some of them hidden."""

    tokens: list[int]  # t, the model's input
    positions: list[int]  # of the tokens to predict, ascending
    targets: list[int]  # the original tokens


def hide(tokens: list[int], masking: Masking, rng: Random) -> Masked:
    """Hide a share of the tokens, at least one."""
    wanted = min(masking.most, max(1, round(masking.share * len(tokens))))
    seen = list(tokens)
    chosen: list[int] = []
    for word in _words_in_random_order(tokens, masking, rng):
        if len(chosen) == wanted:
            break
        if len(chosen) + len(word) <= wanted:
            chosen += word
    for position in chosen:
        draw = rng.random()
        if draw < MASKED:
            seen[position] = masking.mask
        elif draw < MASKED + REPLACED:
            seen[position] = rng.randrange(masking.vocabulary)
    chosen.sort()
    return Masked(seen, chosen, [tokens[position] for position in chosen])


def most_per_sample(share: float, max_seq_length: int) -> int:
    """The largest number of hidden tokens in one sample, as in NVIDIA's BERT."""
    return math.ceil(share * max_seq_length)


def _words_in_random_order(tokens: list[int], masking: Masking, rng: Random) -> list[list[int]]:
    """Groups of positions that are hidden together."""
    words: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in masking.special:
            continue
        goes_on = masking.whole_word and token in masking.continues
        if goes_on and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    return words


RANDOM_NEXT = 0.5
EVALUATION_SEED, EVALUATION_EPOCH = 0, -1  # all runs and epochs are scored on the same pairs


class Pairs:
    """One sample for each chunk of the corpus; the epoch determines pairs and masks.

    Each chunk is cut into two segments, between sentences if it has several. In half of the
    samples, a run of sentences from another document replaces the second segment, and the rest of
    the chunk is not used in this epoch.
    """

    def __init__(
        self,
        corpus: Mapping[str, Tensor],
        masking: Masking,
        marks: tuple[int, int],  # [CLS] and [SEP]
        *,
        seed: int,
        room: int,  # tokens of both segments together
    ) -> None:
        self._tokens, self._sentences, self._documents, self._chunks = (
            corpus[name].numpy() for name in ("input_ids", "sentences", "documents", "chunks")
        )
        self._masking, self._marks, self._seed, self._room = masking, marks, seed, room
        self.epoch = EVALUATION_EPOCH

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index: int) -> PairSample:
        rng = Random(hash_seed(self._seed, self.epoch, index))
        document, start, end = self._chunks[index].tolist()
        cut = self._cut(start, end, rng)
        first = self._tokens[self._sentences[start] : cut].tolist()
        is_random_next = rng.random() < RANDOM_NEXT
        if is_random_next:
            second = self._elsewhere(document, self._room - len(first), rng)
        else:
            second = self._tokens[cut : self._sentences[end]].tolist()
        cls, sep = self._marks
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        seen, positions, targets = hide([cls, *first, sep, *second, sep], self._masking, rng)
        return PairSample(seen, segments, positions, targets, int(is_random_next))

    def _cut(self, start: int, end: int, rng: Random) -> int:
        """Where the second segment begins: at a sentence, or within the only sentence."""
        if end - start > 1:
            return int(self._sentences[rng.randrange(start + 1, end)])
        return rng.randrange(int(self._sentences[start]) + 1, int(self._sentences[end]))

    def _elsewhere(self, document: int, room: int, rng: Random) -> list[int]:
        """Up to `room` tokens of another document, from the beginning of a sentence."""
        other = rng.randrange(len(self._documents) - 2)
        other += other >= document
        first, last = int(self._documents[other]), int(self._documents[other + 1])
        start = int(self._sentences[rng.randrange(first, last)])
        tokens: list[int] = self._tokens[start : min(start + room, self._sentences[last])].tolist()
        return tokens
