"""Precision, recall and F1 of whole entities, as conlleval counts them, over all ranks."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from train.tasks.tagging.encoding import IGNORED

Entity = tuple[str, int, int]  # its type, its first word and the one behind its last
TRUE, PREDICTED, GOLD = range(3)


class Entities:
    """Entities by type that were found, predicted, and there to be found.

    An entity counts as found where type, beginning and end are right. It begins at `B-X`, or at
    `I-X` behind anything but its own type, so that IOB1 and IOB2 both are read as they are meant.
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
        found = set(entities([self._tags[tag] for tag in predicted]))
        wanted = set(entities([self._tags[tag] for tag in gold]))
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


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of one sentence."""
    start, open_type = 0, ""
    for at, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        goes_on = open_type and prefix == "I" and kind == open_type
        if goes_on:
            continue
        if open_type:
            yield open_type, start, at
        start, open_type = at, kind


def _scores(counts: Tensor) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 where there is nothing to count."""
    true, predicted, gold = counts.tolist()
    return (
        true / predicted if predicted else 0.0,
        true / gold if gold else 0.0,
        2 * true / (predicted + gold) if predicted + gold else 0.0,
    )
