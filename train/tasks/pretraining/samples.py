"""One sample of pre-training, from any source, and n of them as a batch."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from train.tasks.base import Batch


class PairSample(NamedTuple):
    """Two segments of t tokens with their marks, m of them hidden."""

    tokens: list[int]  # t
    segments: list[int]  # t, of 0 and 1
    positions: list[int]  # m, of the tokens to predict
    targets: list[int]  # m
    is_random_next: int  # 1 if the second segment is from elsewhere


def collate(samples: Sequence[PairSample], padding: int, width: int | None) -> Batch:
    """n samples, padded to `width` or to the longest.

    Returns:
        input_ids, token_type_ids and attention_mask: int64 (n, width); masked_positions in the
        flattened (n * width,), masked_labels: int64 (all m,); labels (n,).
    """
    longest = width or max(len(sample.tokens) for sample in samples)

    def filled(rows: Iterable[list[int]], padding: int = 0) -> Tensor:
        return torch.tensor([row + [padding] * (longest - len(row)) for row in rows])

    rows = enumerate(samples)
    positions = [row * longest + at for row, sample in rows for at in sample.positions]
    targets = [target for sample in samples for target in sample.targets]
    return {
        "input_ids": filled((sample.tokens for sample in samples), padding),
        "token_type_ids": filled(sample.segments for sample in samples),
        "attention_mask": filled([1] * len(sample.tokens) for sample in samples),
        "masked_positions": torch.tensor(positions, dtype=torch.int64),
        "masked_labels": torch.tensor(targets, dtype=torch.int64),
        "labels": torch.tensor([sample.is_random_next for sample in samples]),
    }
