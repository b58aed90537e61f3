"""Precision, recall and F1 of whole entities, counted like conlleval, over all ranks."""

from collections.abc import Sequence

import torch
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor

IGNORED = -100  # the tag of other pieces than a word's first, and of padding
TRUE, PREDICTED, GOLD = range(3)


class Entities:
    """Counts of entities by type: correct, predicted, and in the references.

    seqeval decides what an entity is, in IOB1 and IOB2; it is correct if type, beginning and end
    are right.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tags
        self._types = sorted({tag[2:] for tag in tags if tag != "O"})
        self.state = torch.zeros(len(self._types), 3, dtype=torch.float64)

    def update(self, logits: Tensor, labels: Tensor, positions: Tensor) -> None:
        """Count n sentences: logits (n, pieces, tags), labels (n, pieces) with `IGNORED`."""
        for predicted, gold in zip(logits.argmax(-1), labels, strict=True):
            words = gold != IGNORED
            self.count(predicted[words].tolist(), gold[words].tolist())

    def count(self, predicted: Sequence[int], gold: Sequence[int]) -> None:
        """Count one sentence, a tag's number per word."""
        found, wanted = (
            set(get_entities([self._tags[tag] for tag in tags])) for tags in (predicted, gold)
        )
        for column, some in ((TRUE, found & wanted), (PREDICTED, found), (GOLD, wanted)):
            for kind, _, _ in some:
                self.state[self._types.index(kind), column] += 1

    def compute(self) -> dict[str, float]:
        """Over all entities, and F1 of each type, such as `f1_LOC`."""
        precision, recall, f1 = _scores(self.state.sum(0))
        each = {
            f"f1_{kind}": _scores(row)[2] for kind, row in zip(self._types, self.state, strict=True)
        }
        return {"precision": precision, "recall": recall, "f1": f1, **each}


def _scores(counts: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 if there is nothing to count."""
    true, predicted, gold = counts.tolist()
    return (
        true / predicted if predicted else 0.0,
        true / gold if gold else 0.0,
        2 * true / (predicted + gold) if predicted + gold else 0.0,
    )
