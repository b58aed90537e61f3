"""Make pairs of segments from a corpus's chunks, new in every epoch, the same on every rank."""

from collections.abc import Mapping
from random import Random

from torch import Tensor

from train.model.rng import hash_seed
from train.tasks.pretraining.corpus import MARKS
from train.tasks.pretraining.masking import Vocabulary, hide, most_per_sample
from train.tasks.pretraining.samples import PairSample

RANDOM_NEXT = 0.5
EVALUATION_SEED, EVALUATION_EPOCH = 0, -1  # all runs and epochs are scored on the same


class Pairs:
    """As many samples as the corpus has chunks; the epoch determines pairs and masks.

    Each chunk is cut into two segments, between sentences if it has several. In one half of the
    samples, a run of sentences from another document replaces the second segment, and the rest of
    the chunk is not used in this epoch.
    """

    def __init__(
        self,
        corpus: Mapping[str, Tensor],
        vocabulary: Vocabulary,
        marks: tuple[int, int],  # [CLS] and [SEP]
        *,
        seed: int,
        room: int,  # tokens of both segments together
        share: float,
        whole_word: bool,
    ) -> None:
        self._tokens, self._sentences, self._documents, self._chunks = (
            corpus[name].numpy() for name in ("tokens", "sentences", "documents", "chunks")
        )
        self._vocabulary, self._marks = vocabulary, marks
        self._seed, self._room, self._share = seed, room, share
        self._whole_word = whole_word
        self.epoch = EVALUATION_EPOCH

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, index: int) -> PairSample:
        rng = Random(hash_seed(self._seed, self.epoch, index))
        document, start, end = self._chunks[index].tolist()
        cut = self._cut(start, end, rng)
        first = self._span(int(self._sentences[start]), cut)
        is_random_next = rng.random() < RANDOM_NEXT
        if is_random_next:
            second = self._elsewhere(document, self._room - len(first), rng)
        else:
            second = self._span(cut, int(self._sentences[end]))
        cls, sep = self._marks
        tokens = [cls, *first, sep, *second, sep]
        masked = hide(
            tokens,
            self._vocabulary,
            rng,
            share=self._share,
            most=most_per_sample(self._share, self._room + MARKS),
            whole_word=self._whole_word,
        )
        segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        return PairSample(
            masked.tokens, segments, masked.positions, masked.targets, int(is_random_next)
        )

    def _cut(self, start: int, end: int, rng: Random) -> int:
        """Where the second segment begins: at a sentence, or within a single one."""
        if end - start > 1:
            return int(self._sentences[rng.randrange(start + 1, end)])
        return rng.randrange(int(self._sentences[start]) + 1, int(self._sentences[end]))

    def _elsewhere(self, document: int, room: int, rng: Random) -> list[int]:
        """Up to `room` tokens of another document, from the beginning of a sentence."""
        other = rng.randrange(len(self._documents) - 2)
        other += other >= document
        first, last = int(self._documents[other]), int(self._documents[other + 1])
        start = int(self._sentences[rng.randrange(first, last)])
        return self._span(start, min(start + room, int(self._sentences[last])))

    def _span(self, start: int, end: int) -> list[int]:
        tokens: list[int] = self._tokens[start:end].tolist()
        return tokens
