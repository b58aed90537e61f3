"""Samples of unequal length become one rectangle; what pads them is masked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from train.tasks.base import Batch


class Sample(NamedTuple):
    """One example of t tokens."""

    tokens: dict[str, Tensor]  # input_ids and whatever else each token has: int32 (t,)
    label: Tensor | None  # scalar: class number, or score; None: the tokens have labels


class TokenSet:
    """The samples of one cached set."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        tokens = dict(tensors)
        self._labels = tokens.pop("labels", None)
        self._offsets: list[int] = tokens.pop("offsets").tolist()
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sample: int64 (n,)."""
        return torch.tensor(self._offsets).diff()

    def __getitem__(self, index: int) -> Sample:
        start, end = self._offsets[index], self._offsets[index + 1]
        tokens = {key: flat[start:end] for key, flat in self._tokens.items()}
        return Sample(tokens, None if self._labels is None else self._labels[index])


@dataclass(frozen=True)
class Padding:
    """How a tokenizer fills up short samples."""

    values: Mapping[str, int]  # by tensor
    side: str  # "right", or "left" (XLNet)
    multiple: int = 1  # of tokens, to which the longest is filled up as well

    def filled(self, lengths: Tensor) -> Tensor:
        """`lengths` (n,) up to the next multiple."""
        return (lengths + self.multiple - 1) // self.multiple * self.multiple

    def collate(self, samples: Sequence[Sample], width: int | None) -> Batch:
        """n samples as int64 (n, width) each, and labels (n,); width None: that of the longest."""
        lengths = [len(sample.tokens["input_ids"]) for sample in samples]
        width = width or int(self.filled(torch.tensor(lengths)).max())
        starts = [width - length if self.side == "left" else 0 for length in lengths]
        batch = {"attention_mask": torch.zeros(len(samples), width, dtype=torch.int64)}
        for key in samples[0].tokens:
            batch[key] = torch.full((len(samples), width), self.values[key])
        for row, (sample, start, length) in enumerate(zip(samples, starts, lengths, strict=True)):
            batch["attention_mask"][row, start : start + length] = 1
            for key, tokens in sample.tokens.items():
                batch[key][row, start : start + length] = tokens
        labels = [sample.label for sample in samples if sample.label is not None]
        return {**batch, "labels": torch.stack(labels)} if labels else batch
